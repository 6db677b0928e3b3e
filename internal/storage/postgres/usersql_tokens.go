package postgres

import (
	"strings"
	"unicode/utf8"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// tokenKind is what a piece of SQL text is, as far as names in it matter.
type tokenKind int

const (
	tokenWord   tokenKind = iota // a keyword or a bare name, folded to lower case
	tokenName                    // a quoted name
	tokenSymbol                  // one character of anything else
	tokenBody                    // the text between dollar quotes: often SQL itself
)

type token struct {
	kind tokenKind
	text string
}

// isName says whether the token can be a part of a table's name.
func (t token) isName() bool { return t.kind == tokenWord || t.kind == tokenName }

func (t token) is(word string) bool {
	return (t.kind == tokenWord || t.kind == tokenSymbol) && t.text == word
}

// tokenize cuts SQL as PostgreSQL's scanner does (PostgreSQL manual, "Lexical Structure"). Comments and string literals are left out. It
// never fails: what an unfinished quote begins goes to the end of the text, and the database will refuse it.
func tokenize(sql string) []token {
	l := lexer{text: sql}
	for l.at < len(l.text) {
		l.next()
	}
	return l.tokens
}

type lexer struct {
	text   string
	at     int
	tokens []token
}

func (l *lexer) rest() string { return l.text[l.at:] }

func (l *lexer) next() {
	c := l.text[l.at]
	switch {
	case strings.HasPrefix(l.rest(), "--"):
		l.skipPast("\n", 2)
	case strings.HasPrefix(l.rest(), "/*"):
		l.comment()
	case c == '\'':
		l.literal(false)
	case c == '"':
		l.quotedName()
	case c == '$':
		l.dollar()
	case isNameStart(c):
		l.word()
	case c >= '0' && c <= '9':
		l.number()
	case c == ' ' || c >= '\t' && c <= '\r':
		l.at++
	default:
		l.add(tokenSymbol, l.text[l.at:l.at+1])
		l.at++
	}
}

func (l *lexer) add(kind tokenKind, text string) {
	l.tokens = append(l.tokens, token{kind: kind, text: text})
}

// skipPast goes behind the next end, looked for from so many bytes on, or to the end of the text.
func (l *lexer) skipPast(end string, from int) {
	if i := strings.Index(l.text[l.at+from:], end); i >= 0 {
		l.at += from + i + len(end)
		return
	}
	l.at = len(l.text)
}

// comment goes behind a block comment. They nest.
func (l *lexer) comment() {
	depth := 0
	for l.at < len(l.text) {
		switch {
		case strings.HasPrefix(l.rest(), "/*"):
			depth++
			l.at += 2
		case strings.HasPrefix(l.rest(), "*/"):
			depth--
			l.at += 2
			if depth == 0 {
				return
			}
		default:
			l.at++
		}
	}
}

// literal goes behind a string in single quotes. In one with backslashes a backslash hides the quote behind it.
func (l *lexer) literal(backslashes bool) {
	l.at++
	for l.at < len(l.text) {
		switch {
		case backslashes && l.text[l.at] == '\\':
			l.at += 2
		case l.text[l.at] != '\'':
			l.at++
		case strings.HasPrefix(l.rest(), "''"):
			l.at += 2
		default:
			l.at++
			return
		}
	}
	l.at = len(l.text)
}

func (l *lexer) quotedName() {
	l.at++
	var name strings.Builder
	for l.at < len(l.text) {
		switch {
		case l.text[l.at] != '"':
			name.WriteByte(l.text[l.at])
			l.at++
		case strings.HasPrefix(l.rest(), `""`):
			name.WriteByte('"')
			l.at += 2
		default:
			l.at++
			l.add(tokenName, cutName(name.String()))
			return
		}
	}
}

// dollar reads $tag$...$tag$, or a single $ as of a parameter.
func (l *lexer) dollar() {
	end := l.at + 1
	for end < len(l.text) && isNamePart(l.text[end]) && l.text[end] != '$' {
		end++
	}
	tag := l.text[l.at:end]
	if end == len(l.text) || l.text[end] != '$' || len(tag) > 1 && !isNameStart(tag[1]) {
		l.add(tokenSymbol, "$")
		l.at++
		return
	}
	tag += "$"
	l.at = end + 1
	body := l.rest()
	if i := strings.Index(body, tag); i >= 0 {
		body = body[:i]
		l.at += len(tag)
	}
	l.at += len(body)
	l.add(tokenBody, body)
}

func (l *lexer) word() {
	start := l.at
	for l.at < len(l.text) && isNamePart(l.text[l.at]) {
		l.at++
	}
	word := l.text[start:l.at]
	if (word == "e" || word == "E") && strings.HasPrefix(l.rest(), "'") {
		l.literal(true)
		return
	}
	l.add(tokenWord, cutName(lowerASCII(word)))
}

// number goes behind digits and what sticks to them, so that 1e5 is no name.
func (l *lexer) number() {
	for l.at < len(l.text) && isNamePart(l.text[l.at]) {
		l.at++
	}
	l.add(tokenSymbol, "0")
}

func isNameStart(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

func isNamePart(c byte) bool {
	return isNameStart(c) || c >= '0' && c <= '9' || c == '$'
}

// lowerASCII folds a bare name as PostgreSQL does in a multi-byte encoding: A to Z only.
func lowerASCII(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, name)
}

// cutName cuts a name as PostgreSQL does: at 63 bytes, never inside a character.
func cutName(name string) string {
	if len(name) <= storage.MaxIdentifierBytes {
		return name
	}
	end := storage.MaxIdentifierBytes
	for end > 0 && !utf8.RuneStart(name[end]) {
		end--
	}
	return name[:end]
}
