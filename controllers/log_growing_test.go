package controllers

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestALogThatGrowsIsAConditionAndGoesWithIt(t *testing.T) {
	for rows, shown := range map[int64]bool{0: false, storage.MaxCountedLogRows - 1: false, storage.MaxCountedLogRows: true} {
		pass := &schemaPass{
			object: &v1alpha1.SyncSchema{}, verdict: reconciling(0, v1alpha1.ReasonBackfilling, "work goes on"), gate: &storage.ServeGate{},
			status: &storage.Status{Protocol: storage.CatalogProtocol, Sources: []storage.SourceStatus{{Table: "todos", Capturing: true, LogRows: rows}}},
		}
		growing := meta.FindStatusCondition(pass.conditions(), v1alpha1.ConditionLogGrowing)
		switch {
		case (growing != nil) != shown:
			t.Errorf("%d rows: the condition is %+v", rows, growing)
		case shown && (growing.Status != metav1.ConditionTrue || growing.Reason != v1alpha1.ReasonLogGrowing || !strings.Contains(growing.Message, `"todos"`)):
			t.Errorf("%d rows: %+v", rows, growing)
		}
	}
}
