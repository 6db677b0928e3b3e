// Package manifest reads what users write: a file with one SyncSchema and any number of standalone BackfillCheckpoints
// (docs/design.md sections 7 and 9). It turns them into the engine's input, storage.Target.
//
// Three layers find what is wrong, and each names the field:
//
//   - Parse reads the documents strictly and runs the schema of the CustomResourceDefinitions on them, with defaulting and CEL, as the
//     API server does. So a file that the command line takes is one that the cluster takes. There is one exception:
//     spec.database may be left out, since the command line is told the database beside the file.
//   - Relations checks what one list says against another. The schema cannot do it within the API server's budget, so the
//     controller calls it too.
//   - Convert makes the target. What only a cluster can answer, such as SQL in a ConfigMap, it refuses.
//
// Errors of content are a *storage.Error with storage.CodeInvalidSpec. They never repeat SQL, nor a value that could be a
// secret.
package manifest
