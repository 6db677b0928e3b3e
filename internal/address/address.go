// Package address puts the address of a PostgreSQL database together: from the parts that Secrets hold, and from inside a namespace,
// where a host without a dot is a Service of that namespace. Operator and worker use the same functions, so that both reach the same
// server by the same name (docs/design.md section 7).
package address

import (
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"
)

// Parts is an address in parts.
type Parts struct {
	Host     string // a name or an address
	Port     string // empty: 5432
	Database string
	User     string
	Password string // empty: none is sent
	SSLMode  string // empty: the driver's default
}

const (
	defaultPort    = "5432"
	longestHost    = 253 // of a name in the DNS
	longestName    = 63  // of anything in PostgreSQL (manual, "Identifiers and Key Words")
	hostCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]"
)

// URL gives the parts as postgres://user:password@host:port/database?sslmode=..., whatever characters they hold. No error repeats a
// value.
func (p Parts) URL() (string, error) {
	port := p.Port
	if port == "" {
		port = defaultPort
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		return "", errors.New("the port is no number from 1 to 65535")
	}
	for _, part := range [][2]string{{"host", p.Host}, {"database", p.Database}, {"user", p.User}} {
		if part[1] == "" {
			return "", errors.New("the " + part[0] + " is empty")
		}
	}
	if len(p.Host) > longestHost || strings.ContainsFunc(p.Host, func(r rune) bool { return !strings.ContainsRune(hostCharacters, r) }) {
		return "", errors.New("the host is neither a name nor an address")
	}
	// User and database go to the server as they are, before it has proved anything. A key, a token or a file that was taken for one of them by
	// mistake, or by somebody who may use a Secret and not read it, does not.
	for _, part := range [][2]string{{"database", p.Database}, {"user", p.User}} {
		if len(part[1]) > longestName || strings.ContainsFunc(part[1], unicode.IsControl) {
			return "", errors.New("the " + part[0] + " is no name that a server has: it is longer than 63 bytes, or of several lines")
		}
	}
	whole := url.URL{Scheme: "postgres", Host: net.JoinHostPort(strings.Trim(p.Host, "[]"), port), Path: "/" + p.Database, User: url.User(p.User)}
	// An @ behind the host is how a password with a slash looks that was not encoded, so readers refuse it.
	whole.RawPath = strings.ReplaceAll(whole.EscapedPath(), "@", "%40")
	if p.Password != "" {
		whole.User = url.UserPassword(p.User, p.Password)
	}
	if p.SSLMode != "" {
		whole.RawQuery = url.Values{"sslmode": {p.SSLMode}}.Encode()
	}
	return whole.String(), nil
}

// Clean takes off the line end that editors and shells leave behind a value in a file or Secret.
func Clean(value []byte) string { return strings.TrimRight(string(value), "\r\n") }

// InNamespace gives a host its full name: one without a dot is a Service of the namespace. Addresses stay as they are, and so does
// everything without a namespace.
func InNamespace(host, namespace string) string {
	if host == "" || namespace == "" || strings.Contains(host, ".") {
		return host
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return host
	}
	return host + "." + namespace + ".svc"
}

// URLInNamespace does the same to every host of a URL, in its authority and in its parameter host. A URL that is none comes back as it is:
// whoever opens it says what is wrong with it.
func URLInNamespace(text, namespace string) string {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || scheme != "postgres" && scheme != "postgresql" {
		return text
	}
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	userinfo, hosts := "", authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		userinfo, hosts = authority[:i+1], authority[i+1:]
	}
	if path, query, found := strings.Cut(tail, "?"); found {
		parameters := strings.Split(query, "&")
		for i, parameter := range parameters {
			if value, is := strings.CutPrefix(parameter, "host="); is {
				parameters[i] = "host=" + hostsInNamespace(value, namespace)
			}
		}
		tail = path + "?" + strings.Join(parameters, "&")
	}
	return scheme + "://" + userinfo + hostsInNamespace(hosts, namespace) + tail
}

func hostsInNamespace(list, namespace string) string {
	hosts := strings.Split(list, ",")
	for i, host := range hosts {
		name, port := host, ""
		if at := strings.LastIndexByte(host, ':'); at >= 0 && !strings.HasSuffix(host, "]") && strings.Count(host, ":") == 1 {
			name, port = host[:at], host[at:]
		}
		if strings.ContainsAny(name, "%/@[]:") {
			continue // an address in brackets, a socket, or something that its reader will refuse
		}
		hosts[i] = InNamespace(name, namespace) + port
	}
	return strings.Join(hosts, ",")
}
