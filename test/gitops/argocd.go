package gitops

import (
	"context"
	"fmt"
	"time"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	files "github.com/syncbarrier/syncbarrier/config/gitops"
)

// scriptBound is how long Argo CD lets a script run.
const scriptBound = time.Second

// ArgoHealth runs our health script on an object as Argo CD does (util/lua/lua.go): with the libraries package, base and table alone,
// the object in the global obj, and a table as the answer.
func ArgoHealth(ctx context.Context, object *unstructured.Unstructured) (health, message string, err error) {
	script, err := files.Files.ReadFile("argocd/health.lua")
	if err != nil {
		return "", "", err
	}
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{{lua.LoadLibName, lua.OpenPackage}, {lua.BaseLibName, lua.OpenBase}, {lua.TabLibName, lua.OpenTable}} {
		call := lua.P{Fn: state.NewFunction(library.open), NRet: 0, Protect: true}
		if err := state.CallByParam(call, lua.LString(library.name)); err != nil {
			return "", "", fmt.Errorf("open the library %q: %w", library.name, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, scriptBound)
	defer cancel()
	state.SetContext(ctx)
	global, err := luaValue(state, object.Object)
	if err != nil {
		return "", "", err
	}
	state.SetGlobal("obj", global)
	if err := state.DoString(string(script)); err != nil {
		return "", "", fmt.Errorf("run the health script: %w", err)
	}
	answer, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return "", "", fmt.Errorf("the script returns a %s, Argo CD wants a table", state.Get(-1).Type())
	}
	return lua.LVAsString(answer.RawGetString("status")), lua.LVAsString(answer.RawGetString("message")), nil
}

// luaValue turns a value of an object into one of Lua.
func luaValue(state *lua.LState, value any) (lua.LValue, error) {
	switch value := value.(type) {
	case nil:
		return lua.LNil, nil
	case bool:
		return lua.LBool(value), nil
	case string:
		return lua.LString(value), nil
	case int64:
		return lua.LNumber(value), nil
	case float64:
		return lua.LNumber(value), nil
	case []any:
		list := state.CreateTable(len(value), 0)
		for _, item := range value {
			entry, err := luaValue(state, item)
			if err != nil {
				return nil, err
			}
			list.Append(entry)
		}
		return list, nil
	case map[string]any:
		table := state.CreateTable(0, len(value))
		for key, item := range value {
			entry, err := luaValue(state, item)
			if err != nil {
				return nil, err
			}
			table.RawSetString(key, entry)
		}
		return table, nil
	}
	return nil, fmt.Errorf("an object of an API server holds no %T", value)
}
