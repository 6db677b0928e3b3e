package controllers

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// A status is written when its text changes, so what grows all the time may not stand in it to the byte.
func TestALogThatGrowsIsSpokenOfInTheSameWordsUntilItHasDoubled(t *testing.T) {
	said := func(mebibytes int64) string {
		return storage.Status{LogBytes: mebibytes << 20, Sources: []storage.SourceStatus{{Table: "todos", LogRows: storage.MaxCountedLogRows}}}.LogGrowing()
	}
	if said(512) != said(1023) || said(512) == said(1024) {
		t.Errorf("512 MiB: %q, 1023 MiB: %q, 1024 MiB: %q", said(512), said(1023), said(1024))
	}
	for mebibytes, want := range map[int64]string{0: " 0 MiB", 1: " 1 MiB", 1023: " 512 MiB", 1024: " 1024 MiB"} {
		if !strings.Contains(said(mebibytes), want) {
			t.Errorf("%d MiB: %q, want %q in it", mebibytes, said(mebibytes), want)
		}
	}
}

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
