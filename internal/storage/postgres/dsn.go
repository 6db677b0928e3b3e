package postgres

import (
	"errors"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// connectionTarget is a database URL taken apart.
type connectionTarget struct {
	hosts, ports []string
	// settings are those that the driver itself reads, by libpq's names.
	settings map[string]string
	// parameters go to the server when a connection starts.
	parameters map[string]string
}

// driverSettings are the settings of a connection that the driver reads, with their defaults. All of them are always given to it, because
// it would take those that are missing from PG* variables and from files in the home directory.
var driverSettings = map[string]string{
	"user": "", "password": "", "database": "", "connect_timeout": "3", "sslmode": "prefer", "sslkey": "", "sslcert": "",
	"sslrootcert": "", "sslpassword": "", "sslcertmode": "allow", "sslsni": "1", "sslnegotiation": "", "passfile": "", "servicefile": "",
	"target_session_attrs": "any", "min_protocol_version": "", "max_protocol_version": "", "channel_binding": "", "require_auth": "",
}

// refusedSettings would make the environment or the disk take part.
var refusedSettings = map[string]string{
	"passfile":    "put the password into the URL",
	"servicefile": "put the connection's settings into the URL",
	"service":     "put the connection's settings into the URL",
	"sslrootcert": "give the file as the CA of the TLS settings",
	"sslcert":     "give the file as the certificate of the TLS settings",
	"sslkey":      "give the file as the key of the TLS settings",
	"krbsrvname":  "use a password or a client certificate",
	"krbspn":      "use a password or a client certificate",
}

// parseURL takes a URL apart. No error of it repeats any part of the URL but the names of parameters.
func parseURL(text string) (connectionTarget, error) {
	target := connectionTarget{settings: maps.Clone(driverSettings), parameters: map[string]string{}}
	rest, ok := strings.CutPrefix(text, "postgres://")
	if !ok {
		rest, ok = strings.CutPrefix(text, "postgresql://")
	}
	if !ok {
		return target, refuseURL("the database URL does not begin with postgres://")
	}
	// net/url knows only one host, so the list of hosts is taken out first.
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	userinfo, hosts := "", authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		userinfo, hosts = authority[:i+1], authority[i+1:]
	}
	parsed, err := url.Parse("postgres://" + userinfo + "host" + tail)
	// An @ behind the host means that a character of the password was taken for the end of the host, which would be another one.
	behind := parsed != nil && (strings.Contains(parsed.EscapedPath(), "@") || userinfo != "" && strings.Contains(parsed.RawQuery, "@"))
	if err != nil || parsed.Fragment != "" || behind {
		return target, refuseURL(errURL.Error())
	}
	target.settings["user"] = parsed.User.Username()
	target.settings["password"], _ = parsed.User.Password()
	target.settings["database"] = strings.TrimPrefix(parsed.Path, "/")
	query, err := url.ParseQuery(parsed.RawQuery)
	if err != nil {
		return target, refuseURL(errURL.Error())
	}
	if err := target.addQuery(query, &hosts); err != nil {
		return target, err
	}
	if err := target.addHosts(hosts); err != nil {
		return target, err
	}
	return target, target.check()
}

func refuseURL(message string) *storage.Error {
	return storage.Refuse(storage.CodeInvalidSpec, "%s", message)
}

// addQuery sorts the parameters of the URL into those of the driver and those of the server.
func (t *connectionTarget) addQuery(query url.Values, hosts *string) error {
	for _, name := range slices.Sorted(maps.Keys(query)) {
		value := query.Get(name)
		if hint, refused := refusedSettings[name]; refused {
			return storage.Refuse(storage.CodeInvalidSpec, "the database URL has the parameter %s, which would read a file", name).WithHint("%s", hint)
		}
		if name == "dbname" {
			name = "database"
		}
		_, ofDriver := driverSettings[name]
		switch {
		case name == "host":
			*hosts = value
		case name == "port":
			t.ports = strings.Split(value, ",")
		case ofDriver:
			t.settings[name] = value
		default:
			t.parameters[name] = value
		}
	}
	return nil
}

// addHosts takes a list like "a:5432,b,[::1]:5433" apart.
func (t *connectionTarget) addHosts(list string) error {
	portsGiven := t.ports
	t.ports = nil
	for i, host := range strings.Split(list, ",") {
		host, err := url.PathUnescape(host)
		if err != nil {
			return refuseURL(errURL.Error())
		}
		if strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") {
			return storage.Refuse(storage.CodeInvalidSpec, "the database URL has a socket directory as host").
				WithHint("name a host that is reached by TCP")
		}
		name, port, err := net.SplitHostPort(host)
		if err != nil {
			name, port = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), "5432"
		}
		switch {
		case len(portsGiven) == 1:
			port = portsGiven[0]
		case i < len(portsGiven):
			port = portsGiven[i]
		}
		t.hosts, t.ports = append(t.hosts, name), append(t.ports, port)
	}
	return nil
}

func (t *connectionTarget) check() error {
	switch {
	case slices.Contains(t.hosts, ""):
		return storage.Refuse(storage.CodeInvalidSpec, "the database URL names no host")
	case t.settings["user"] == "":
		return storage.Refuse(storage.CodeInvalidSpec, "the database URL names no user")
	case t.settings["database"] == "":
		return storage.Refuse(storage.CodeInvalidSpec, "the database URL names no database")
	}
	for _, port := range t.ports {
		if number, err := net.LookupPort("tcp", port); err != nil || number == 0 {
			return storage.Refuse(storage.CodeInvalidSpec, "the database URL has a port that is no number from 1 to 65535")
		}
	}
	return nil
}

// addTLS adds the files of a Config.
func (t *connectionTarget) addTLS(config Config) error {
	if (config.TLSCert == "") != (config.TLSKey == "") {
		return storage.Refuse(storage.CodeInvalidSpec, "TLS: a client certificate and its key belong together, but only one is given")
	}
	t.settings["sslrootcert"], t.settings["sslcert"], t.settings["sslkey"] = config.TLSCA, config.TLSCert, config.TLSKey
	if config.TLSCA != "" && t.settings["sslmode"] == driverSettings["sslmode"] {
		t.settings["sslmode"] = "verify-full"
	}
	return nil
}

// address is where the connection goes, for messages.
func (t *connectionTarget) address() string {
	places := make([]string, len(t.hosts))
	for i, host := range t.hosts {
		places[i] = net.JoinHostPort(host, t.ports[i])
	}
	return strings.Join(places, ",") + "/" + t.settings["database"]
}

// driverConfig hands the target to the driver.
func (t *connectionTarget) driverConfig() (*pgxpool.Config, error) {
	var b strings.Builder
	write := func(name, value string) {
		escaped := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value)
		b.WriteString(name + "='" + escaped + "' ")
	}
	write("host", strings.Join(t.hosts, ","))
	write("port", strings.Join(t.ports, ","))
	for _, name := range slices.Sorted(maps.Keys(t.settings)) {
		write(name, t.settings[name])
	}
	config, err := parseWithoutService(b.String())
	if err != nil {
		return nil, &storage.Error{Code: storage.CodeInvalidSpec, Message: "settings of the database connection", Err: settingsError(err)}
	}
	// Whatever is in here that the URL does not say came from the environment.
	config.ConnConfig.RuntimeParams = maps.Clone(t.parameters)
	return config, nil
}

// settingsError gives what the driver says of settings. Its message repeats the connection string; the cause says a value at most, or the path
// of a file.
func settingsError(err error) error {
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(driverSettings))) { // sslcertmode before sslcert
		if said := err.Error(); strings.Contains(said, "invalid "+name) || strings.Contains(said, "unknown "+name) {
			return errors.New(name + " is invalid")
		}
	}
	cause := errors.Unwrap(err)
	if cause == nil {
		return errURL
	}
	if file := (*fs.PathError)(nil); errors.As(cause, &file) {
		return cause
	}
	return errors.New(quoted.ReplaceAllString(cause.Error(), `"..."`))
}

var serviceVariable sync.Mutex

// parseWithoutService calls the driver's parser without PGSERVICE. Every other setting of the environment is overruled by one in
// the connection string, but a service is looked up as soon as the variable exists.
func parseWithoutService(text string) (*pgxpool.Config, error) {
	const variable = "PGSERVICE"
	serviceVariable.Lock()
	defer serviceVariable.Unlock()
	if value, set := os.LookupEnv(variable); set {
		if err := os.Unsetenv(variable); err != nil {
			return nil, err
		}
		defer func() { _ = os.Setenv(variable, value) }() // it was set, so it can be
	}
	return pgxpool.ParseConfig(text)
}
