package manifest

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

func (r *relations) checkTables() {
	path := r.root.Child("tables")
	names, indexes := map[string]bool{}, map[string]bool{}
	for i := range r.spec.Tables {
		table, at := &r.spec.Tables[i], path.Index(i)
		r.checkTableName(at.Child("name"), table.Name)
		if names[table.Name] {
			r.errs = append(r.errs, field.Duplicate(at.Child("name"), table.Name))
		}
		names[table.Name] = true
		r.checkColumns(at.Child("columns"), table)
		if isSyncular(table) {
			r.checkSyncular(at, table)
		} else {
			r.checkPrimaryKey(at.Child("primaryKey"), table)
			r.checkTablePartition(at.Child("partition"), table)
		}
		r.checkIndexes(at.Child("indexes"), table, indexes)
	}
}

func isSyncular(table *v1alpha1.Table) bool { return table.Layout == v1alpha1.LayoutSyncular }

// findColumn finds a declared column; nil if there is none.
func findColumn(table *v1alpha1.Table, name string) *v1alpha1.Column {
	i := slices.IndexFunc(table.Columns, func(c v1alpha1.Column) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &table.Columns[i]
}

func (r *relations) checkColumns(path *field.Path, table *v1alpha1.Table) {
	seen := map[string]bool{}
	for i := range table.Columns {
		column, at := &table.Columns[i], path.Index(i)
		r.checkIdentifier(at.Child("name"), column.Name)
		if seen[column.Name] {
			r.errs = append(r.errs, field.Duplicate(at.Child("name"), column.Name))
		}
		seen[column.Name] = true
		if column.SQLType != "" {
			r.checkSQL(at.Child("sqlType"), column.SQLType)
		}
		if !isSyncular(table) {
			continue
		}
		if isReservedColumn(column.Name) {
			r.invalid(at.Child("name"), column.Name, "columns of a Syncular table that begin with _sync_ are reserved for its layout")
		}
		if column.SQLType != "" {
			r.forbidden(at.Child("sqlType"), "a Syncular table packs its columns, so each needs a type; sqlType is for layout Plain")
		}
	}
}

// checkSyncular: a Syncular table has a key and a partition of its own, and no columns to index unless they are kept beside the
// payload.
func (r *relations) checkSyncular(path *field.Path, table *v1alpha1.Table) {
	if len(table.PrimaryKey) > 0 {
		r.forbidden(path.Child("primaryKey"), "the key of a Syncular table is (_sync_partition, _sync_row_id)")
	}
	if table.Partition != nil {
		r.forbidden(path.Child("partition"), "the partition of a Syncular table's row is its _sync_partition")
	}
	if !table.Materialized() && len(table.Indexes) > 0 {
		r.forbidden(path.Child("indexes"), "a Syncular table with materialize: false has no columns to index")
	}
}

func (r *relations) checkPrimaryKey(path *field.Path, table *v1alpha1.Table) {
	seen := map[string]bool{}
	for i, name := range table.PrimaryKey {
		at := path.Index(i)
		column := findColumn(table, name)
		switch {
		case column == nil:
			r.invalid(at, name, "table %q declares no such column", table.Name)
		case column.Nullable:
			r.invalid(at, name, "a key column cannot be nullable: rows without a key would be skipped")
		}
		if seen[name] {
			r.errs = append(r.errs, field.Duplicate(at, name))
		}
		seen[name] = true
	}
}

func (r *relations) checkTablePartition(path *field.Path, table *v1alpha1.Table) {
	if table.Partition == nil || table.Partition.Column == "" {
		return
	}
	if findColumn(table, table.Partition.Column) == nil {
		r.invalid(path.Child("column"), table.Partition.Column, "table %q declares no such column", table.Name)
	}
}

// checkIndexes: index names share one name space with each other and with the tables.
func (r *relations) checkIndexes(path *field.Path, table *v1alpha1.Table, taken map[string]bool) {
	for i := range table.Indexes {
		index, at := &table.Indexes[i], path.Index(i)
		r.checkIdentifier(at.Child("name"), index.Name)
		switch {
		case isReservedName(index.Name):
			r.invalid(at.Child("name"), index.Name, "names that begin with sync_ or syncbarrier_ are reserved for Syncbarrier's own indexes")
		case taken[index.Name]:
			r.errs = append(r.errs, field.Duplicate(at.Child("name"), index.Name))
		case r.tables[index.Name] != nil:
			r.invalid(at.Child("name"), index.Name, "a table has this name, and in a database tables and indexes share their names")
		}
		taken[index.Name] = true
		seen := map[string]bool{}
		for j, name := range index.Columns {
			column := at.Child("columns").Index(j)
			if findColumn(table, name) == nil {
				r.invalid(column, name, "table %q declares no such column", table.Name)
			}
			if seen[name] {
				r.errs = append(r.errs, field.Duplicate(column, name))
			}
			seen[name] = true
		}
	}
}
