package controllers

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/test/gitops"
)

// mutator changes fields of a spec at random. What comes out may be right, wrong, or what the API server would never let in: an older
// definition may have.
type mutator struct {
	*rand.Rand
	rate float64 // how likely each field changes
}

var fuzzWords = []string{
	"", "a", "id", "ward", "name", "name_search", "patients", "clinic-app", "clinic-sql", "uri", "public", "absent", "Barrier", "Online", "OnApproval",
	"Capture", "CommitLog", "Plain", "Syncular", "string", "integer", "select", "a/b", "..", "ünï", "line\nbreak", "nul\x00byte", "lower(name)", "SELECT 1",
	"SELECT id FROM patients WHERE false", "no sql at all", "COMMIT", "'", `"`, "$(X)", "%s", "*", "capture:x", "\xff\xfe", "numeric(12,2)",
}

func (m *mutator) change(value reflect.Value) {
	if value.CanSet() && m.Float64() < m.rate {
		m.fill(value, 0)
		return
	}
	switch value.Kind() {
	case reflect.Struct:
		for i := range value.NumField() {
			m.change(value.Field(i))
		}
	case reflect.Pointer:
		if !value.IsNil() {
			m.change(value.Elem())
		}
	case reflect.Slice:
		for i := range value.Len() {
			m.change(value.Index(i))
		}
	}
}

func (m *mutator) fill(value reflect.Value, depth int) {
	switch value.Kind() {
	case reflect.String:
		value.SetString(fuzzWords[m.IntN(len(fuzzWords))])
	case reflect.Bool:
		value.SetBool(m.IntN(2) == 0)
	case reflect.Int32, reflect.Int64:
		numbers := []int64{math.MinInt32, -1, 0, 1, 5, 6, 7, 8, 63, math.MaxInt32}
		value.SetInt(numbers[m.IntN(len(numbers))])
	case reflect.Uint8:
		value.SetUint(uint64(m.IntN(256)))
	case reflect.Pointer:
		if m.IntN(3) == 0 || depth > 6 {
			value.SetZero()
			return
		}
		value.Set(reflect.New(value.Type().Elem()))
		m.fill(value.Elem(), depth+1)
	case reflect.Slice:
		length := m.IntN(4)
		if depth > 6 {
			length = 0
		}
		value.Set(reflect.MakeSlice(value.Type(), length, length))
		for i := range length {
			m.fill(value.Index(i), depth+1)
		}
	case reflect.Map:
		value.Set(reflect.MakeMap(value.Type()))
		for range m.IntN(3) {
			key, entry := reflect.New(value.Type().Key()).Elem(), reflect.New(value.Type().Elem()).Elem()
			m.fill(key, depth+1)
			m.fill(entry, depth+1)
			value.SetMapIndex(key, entry)
		}
	case reflect.Struct:
		if template, ok := value.Addr().Interface().(*runtime.RawExtension); ok {
			texts := []string{"", "{}", "[", `{"spec":{"containers":[{"name":"worker","image":"x"}]}}`, `{"spec":7}`, `{"nope":{}}`, "null"}
			template.Raw = []byte(texts[m.IntN(len(texts))])
			return
		}
		for i := range value.NumField() {
			if value.Field(i).CanSet() && m.IntN(2) == 0 {
				m.fill(value.Field(i), depth+1)
			}
		}
	}
}

// expectSound holds what every pass must come to, whatever the spec was.
func expectSound(v *verdict, conditions []metav1.Condition, after time.Duration, what any) {
	GinkgoHelper()
	text := fmt.Sprintf("%+v", what)
	Expect(v).NotTo(BeNil(), text)
	known := map[verdictState][]string{
		stateDone: gitops.DoneReasons, stateReconciling: gitops.InProgressReasons, stateStalled: gitops.FailedReasons,
	}
	Expect(known[v.state]).To(ContainElement(v.reason), text)
	Expect(readyReason(conditions)).To(Equal(v.reason))
	Expect(v.message).NotTo(BeEmpty(), text)
	for _, condition := range conditions {
		Expect(condition.Reason).To(MatchRegexp(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`))
		Expect(len(condition.Message)).To(BeNumerically("<=", maxMessage))
	}
	Expect(after).To(BeNumerically(">=", 200*time.Millisecond), "a hot loop")
}

var _ = Describe("Specs at random", func() {
	It("panic nowhere, loop nowhere, and always come to a condition", func() {
		w := newWorld()
		seed := uint64(GinkgoRandomSeed())
		AddReportEntry("seed", seed)
		w.apply(w.clinic(7))
		w.bring()
		stored := w.schema()
		reasons := map[string]int{}
		for round := range 150 {
			m := &mutator{Rand: rand.New(rand.NewPCG(seed, uint64(round))), rate: []float64{0.02, 0.1, 0.5}[round%3]}
			object := w.clinic([]int32{6, 7, 8}[m.IntN(3)])
			object.UID = types.UID(fmt.Sprint("random-", round))
			object.Generation = int64(round)
			object.Spec.Lock = &v1alpha1.Lock{TimeoutMilliseconds: 100, StatementTimeoutSeconds: 2}
			m.change(reflect.ValueOf(&object.Spec).Elem())
			if lock := object.Spec.Lock; lock != nil { // a wait of its own is not what is looked for
				lock.TimeoutMilliseconds, lock.StatementTimeoutSeconds = 100, 2
			}
			pass := w.schemas.begin(object)
			DeferCleanup(pass.end)
			Expect(w.schemas.run(w.ctx, pass)).To(Succeed(), "%+v", object.Spec)
			status := w.schemas.statusOf(pass)
			expectSound(pass.verdict, status.Conditions, w.schemas.lookAgain(pass, 0), object.Spec)
			pass.end()
			reasons[pass.verdict.reason]++

			checkpoint := standaloneOf(w, "random", "random")
			checkpoint.UID, checkpoint.Generation = types.UID(fmt.Sprint("random-", round)), int64(round)
			m.change(reflect.ValueOf(&checkpoint.Spec).Elem())
			checking := w.checkpoints.begin(checkpoint)
			DeferCleanup(checking.end)
			Expect(w.checkpoints.run(w.ctx, checking)).To(Succeed(), "%+v", checkpoint.Spec)
			after := w.checkpoints.statusOf(checking)
			expectSound(checking.verdict, after.Conditions, max(checking.verdict.after, time.Second), checkpoint.Spec)
			checking.end()
		}
		Expect(len(reasons)).To(BeNumerically(">", 3), "they differ: %v", reasons)
		Expect(stored.Name).To(Equal(w.schema().Name))
		GinkgoWriter.Println(reasons)
	})
})
