package gitops

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

// argoStatuses says which of kstatus's answers an answer of Argo CD can stand for.
var argoStatuses = map[string][]status.Status{
	"Healthy":     {status.CurrentStatus},
	"Degraded":    {status.FailedStatus},
	"Progressing": {status.InProgressStatus, status.TerminatingStatus},
	"Suspended":   {status.InProgressStatus},
}

func TestArgoCDShowsEveryStateAsKstatusDoes(t *testing.T) {
	script, err := os.ReadFile("../../config/gitops/argocd/health.lua")
	if err != nil {
		t.Fatal(err)
	}
	everyState(t, func(t *testing.T, object *unstructured.Unstructured, want verdicts) {
		health, message := runHealthScript(t, string(script), object)
		if health != want.argo {
			t.Errorf("Argo CD shows %q (%s), want %s", health, message, want.argo)
		}
		if message == "" {
			t.Error("Argo CD shows no message")
		}
		if !slices.Contains(argoStatuses[health], want.kstatus) {
			t.Errorf("Argo CD shows %s, kstatus says %s", health, want.kstatus)
		}
	})
}

// runHealthScript runs a script as Argo CD does (util/lua/lua.go): the libraries package, base and table alone, the object in the
// global obj, a second at most, and a table as the answer. A table without a message is an empty one.
func runHealthScript(t *testing.T, script string, object *unstructured.Unstructured) (health, message string) {
	t.Helper()
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{{lua.LoadLibName, lua.OpenPackage}, {lua.BaseLibName, lua.OpenBase}, {lua.TabLibName, lua.OpenTable}} {
		call := lua.P{Fn: state.NewFunction(library.open), NRet: 0, Protect: true}
		if err := state.CallByParam(call, lua.LString(library.name)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	state.SetContext(ctx)
	state.SetGlobal("obj", luaValue(t, state, object.Object))
	if err := state.DoString(script); err != nil {
		t.Fatal(err)
	}
	answer, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("the script returns a %s, Argo CD wants a table", state.Get(-1).Type())
	}
	return lua.LVAsString(answer.RawGetString("status")), lua.LVAsString(answer.RawGetString("message"))
}

// luaValue turns a value of an object into one of Lua.
func luaValue(t *testing.T, state *lua.LState, value any) lua.LValue {
	t.Helper()
	switch value := value.(type) {
	case nil:
		return lua.LNil
	case bool:
		return lua.LBool(value)
	case string:
		return lua.LString(value)
	case int64:
		return lua.LNumber(value)
	case float64:
		return lua.LNumber(value)
	case []any:
		list := state.CreateTable(len(value), 0)
		for _, item := range value {
			list.Append(luaValue(t, state, item))
		}
		return list
	case map[string]any:
		table := state.CreateTable(0, len(value))
		for key, item := range value {
			table.RawSetString(key, luaValue(t, state, item))
		}
		return table
	}
	t.Fatalf("an object of an API server holds no %T", value)
	return nil
}
