package postgres

// namedTable is a name in SQL text that may be a table's, and the lock that its statement would take.
type namedTable struct {
	schema string // empty: where it is looked for by the search path
	name   string
	mode   lockMode
}

// namesIn finds all names in the SQL of a user, bodies between dollar quotes included. Most of them are no tables at all, but columns and
// keywords; only the database can tell. Where a name stands in a statement that changes or drops tables its lock is ACCESS
// EXCLUSIVE, else SHARE ROW EXCLUSIVE, which keeps other writers out and lets readers in.
func namesIn(sql string) []namedTable {
	var names []namedTable
	tokens := tokenize(sql)
	mode := shareRowExclusive
	for i := 0; i < len(tokens); i++ {
		t := tokens[i]
		switch {
		case t.kind == tokenBody:
			names = append(names, namesIn(t.text)...)
			continue
		case t.is(";"):
			mode = shareRowExclusive
			continue
		case t.kind == tokenWord && changesTables(tokens, i):
			mode = accessExclusive
			continue
		case t.is("references"):
			mode = shareRowExclusive // a foreign key needs no more of the table it points to
			continue
		case t.is(","):
			continue
		case !t.isName():
			continue
		}
		named := namedTable{name: t.text, mode: mode}
		if i+2 < len(tokens) && tokens[i+1].is(".") && tokens[i+2].isName() {
			named.schema, named.name = t.text, tokens[i+2].text
			i += 2
		}
		names = append(names, named)
	}
	return names
}

// strongStatements begin statements that take ACCESS EXCLUSIVE on what they name.
var strongStatements = map[string]bool{
	"alter": true, "drop": true, "truncate": true, "cluster": true, "reindex": true, "lock": true,
}

// changesTables says whether the word at i begins such a statement: rules and policies are made under the same lock.
func changesTables(tokens []token, i int) bool {
	if strongStatements[tokens[i].text] {
		return true
	}
	if !tokens[i].is("rule") && !tokens[i].is("policy") {
		return false
	}
	return i > 0 && (tokens[i-1].is("create") || tokens[i-1].is("replace"))
}
