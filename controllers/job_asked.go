package controllers

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// askedForm is how askedBy reckons. An operator that reckons otherwise has another one, and leaves the Jobs of this one to finish their work.
const askedForm = "1-"

// askedBy stands for the part of a SyncSchema that a Job is made from and cannot follow: where the database is, and the template of its
// pods. It is a hash of canonical JSON of exactly that, so a field that a later operator gives the types changes no hash; the operator's image is
// no part of it either. A new operator replaces no Job.
func askedBy(database *v1alpha1.PostgresDatabase, worker *v1alpha1.Worker) string {
	secrets, values := databaseFiles(database)
	from := map[string]any{}
	for file, secret := range secrets {
		from[file] = []string{secret.SecretKeyRef.Name, secret.SecretKeyRef.Key}
	}
	for file, value := range values {
		from[file] = value
	}
	asked := map[string]any{
		"database": from,
		"schema":   cmp.Or(database.Schema, v1alpha1.DefaultPostgresSchema),
		"pooler":   cmp.Or(database.Pooler, v1alpha1.PoolerNone),
	}
	if worker != nil && worker.Template != nil && len(worker.Template.Raw) > 0 {
		var template any // decoded, so that neither the order of its keys nor its spaces count
		if err := json.Unmarshal(worker.Template.Raw, &template); err != nil {
			return "" // no JSON, which the API server does not store
		}
		asked["template"] = template
	}
	text, err := json.Marshal(asked) // keys are sorted
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return askedForm + hex.EncodeToString(sum[:8])
}

// stillAsked says whether a Job is what would be made now. One that does not say what asked for it, or says so in another form, was made by
// another operator, and is left to finish.
func stillAsked(job *batchv1.Job, database *v1alpha1.PostgresDatabase, worker *v1alpha1.Worker) bool {
	by := job.Annotations[annotationAsked]
	return !strings.HasPrefix(by, askedForm) || by == askedBy(database, worker)
}
