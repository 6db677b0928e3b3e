package postgres

import (
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

const sourceSQL = `
	CREATE TABLE todos (
	  id bigint PRIMARY KEY,
	  tenant text,
	  title text,
	  note text,
	  title_norm text
	)`

func todosBy(partition storage.Partition) captureSpec {
	return captureSpec{table: "todos", key: []string{"id"}, partition: partition, columns: []string{"title"}, targets: []string{"title_norm"}}
}

var byTenant = storage.Partition{Column: "tenant"}

func TestCaptureLogsWhatAProgramDoesToAPlainTable(t *testing.T) {
	store, program := newSource(t, sourceSQL)
	capture(t, store, todosBy(byTenant))

	program.run(`INSERT INTO todos VALUES (1, 'a', 't', 'n')`)
	program.expectLog("capture:todos/=a 1 1")
	program.run(`INSERT INTO todos SELECT i, CASE WHEN i % 2 = 0 THEN 'a' ELSE 'b' END, 't' FROM generate_series(2, 5) AS i`)
	program.expectLog("capture:todos/=a 1 2", "capture:todos/=b 1 3", "capture:todos/=a 1 4", "capture:todos/=b 1 5")

	program.run(`UPDATE todos SET title = 'u' WHERE id = 1`)
	program.expectLog("capture:todos/=a 1 1")
	program.run(`UPDATE todos SET title = 'v' WHERE id IN (1, 2, 3)`)
	program.expectLog("capture:todos/=a 1 1", "capture:todos/=a 1 2", "capture:todos/=b 1 3")
	program.run(`UPDATE todos SET title = title WHERE id = 1`)
	program.run(`UPDATE todos SET title = title`)
	program.run(`UPDATE todos SET note = 'm', title_norm = 'x' WHERE id = 1`)
	program.run(`UPDATE todos SET note = 'k', title_norm = 'y'`)
	program.run(`UPDATE todos SET title = 'z' WHERE false`)
	program.expectLog()
	program.run(`UPDATE todos SET title = CASE WHEN id = 4 THEN 'other' ELSE title END`)
	program.expectLog("capture:todos/=a 1 4")

	program.run(`UPDATE todos SET tenant = 'c' WHERE id = 1`)
	program.expectLog("capture:todos/=c 1 1", "capture:todos/=a 2 1")
	program.run(`UPDATE todos SET tenant = 'd' WHERE id IN (1, 2)`)
	program.expectLog("capture:todos/=d 1 1", "capture:todos/=c 2 1", "capture:todos/=d 1 2", "capture:todos/=a 2 2")
	program.run(`UPDATE todos SET tenant = NULL WHERE id = 1`)
	program.expectLog("capture:todos/null 1 1", "capture:todos/=d 2 1")

	program.run(`UPDATE todos SET id = 10 WHERE id = 1`)
	program.expectLog("capture:todos/null 1 10", "capture:todos/null 2 1")
	program.run(`UPDATE todos SET id = 20, tenant = 'a' WHERE id = 10`)
	program.expectLog("capture:todos/=a 1 20", "capture:todos/null 2 10")

	program.run(`DELETE FROM todos WHERE id = 20`)
	program.expectLog("capture:todos/=a 2 20")
	program.run(`DELETE FROM todos`)
	program.expectLog("capture:todos/=d 2 2", "capture:todos/=b 2 3", "capture:todos/=a 2 4", "capture:todos/=b 2 5")
	program.run(`DELETE FROM todos`)
	program.expectLog()
}
