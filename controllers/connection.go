package controllers

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/address"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Secret is text that no format verb, log or JSON shows. Convert it to a string to use it.
type Secret string

const hidden = "(hidden)"

// String gives a word in place of the text.
func (Secret) String() string { return hidden }

// GoString gives a word in place of the text.
func (Secret) GoString() string { return hidden }

// MarshalText gives a word in place of the text.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Connection is a database address with everything that was in Secrets resolved.
type Connection struct {
	// Name is what messages call the database: what the spec says of its address, and in place of the rest the Secret and key that say it.
	Name string
	// Address is host:port/database. Any part of it may be of a Secret, so no message has it.
	Address string
	// Server is host:port: what answers, or does not, as a whole.
	Server string
	// User is the database user.
	User string
	// URL is the whole connection string, postgres://user:password@host:port/database?parameters.
	URL Secret
	// Schema is the database schema.
	Schema string
	// Pooler is None or Transaction.
	Pooler string
	// TLSCA, TLSCert and TLSKey are PEM texts, empty for none.
	TLSCA, TLSCert, TLSKey Secret
}

// key is that of the pool, whatever the schema.
func (c Connection) key() poolKey {
	hash := sha256.New()
	for _, part := range []Secret{c.URL, Secret(c.Pooler), c.TLSCA, c.TLSCert, c.TLSKey} {
		_, _ = fmt.Fprintf(hash, "%d:%s;", len(part), string(part)) // a hash never fails to be written to
	}
	return poolKey{address: c.Address, user: c.User, credentials: hex.EncodeToString(hash.Sum(nil))}
}

// secretRetry is how often a Secret or ConfigMap that is missing is looked for. There is no watch on them: it would need the right to
// read them all.
const secretRetry = 5 * time.Second

// resolver reads Secrets and ConfigMaps of one namespace, each once in a pass, by get and not through a cache.
type resolver struct {
	reader     client.Reader
	namespace  string
	secrets    map[string]*corev1.Secret
	configMaps map[string]*corev1.ConfigMap
}

func newResolver(reader client.Reader, namespace string) *resolver {
	return &resolver{reader: reader, namespace: namespace, secrets: map[string]*corev1.Secret{}, configMaps: map[string]*corev1.ConfigMap{}}
}

// secretValue gives a key's text without the line end that editors and `echo` leave behind.
func (r *resolver) secretValue(ctx context.Context, ref v1alpha1.KeyReference) (string, error) {
	secret, known := r.secrets[ref.Name]
	if !known {
		if err := checkName("Secret", ref.Name); err != nil {
			return "", err
		}
		secret = &corev1.Secret{}
		if err := r.reader.Get(ctx, types.NamespacedName{Namespace: r.namespace, Name: ref.Name}, secret); err != nil {
			return "", missingOr(err, "Secret", ref.Name)
		}
		r.secrets[ref.Name] = secret
	}
	value, there := secret.Data[ref.Key]
	return keyValue(string(value), there, "Secret", ref)
}

func (r *resolver) configValue(ctx context.Context, ref v1alpha1.KeyReference) (string, error) {
	config, known := r.configMaps[ref.Name]
	if !known {
		if err := checkName("ConfigMap", ref.Name); err != nil {
			return "", err
		}
		config = &corev1.ConfigMap{}
		if err := r.reader.Get(ctx, types.NamespacedName{Namespace: r.namespace, Name: ref.Name}, config); err != nil {
			return "", missingOr(err, "ConfigMap", ref.Name)
		}
		r.configMaps[ref.Name] = config
	}
	if _, binary := config.BinaryData[ref.Key]; binary {
		return "", missing("key %q of ConfigMap %q stands in binaryData: it is no UTF-8 text, as SQL has to be", ref.Key, ref.Name)
	}
	value, there := config.Data[ref.Key]
	return keyValue(value, there, "ConfigMap", ref)
}

func keyValue(value string, there bool, kind string, ref v1alpha1.KeyReference) (string, error) {
	value = address.Clean([]byte(value))
	switch {
	case !there:
		return "", missing("%s %q has no key %q", kind, ref.Name, ref.Key)
	case value == "":
		return "", missing("key %q of %s %q is empty", ref.Key, kind, ref.Name)
	}
	return value, nil
}

// checkName refuses what can be no object's name, before it becomes part of a request's path.
func checkName(kind, name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return storage.Refuse(storage.CodeInvalidSpec, "%q is no name of a %s: %s", cut(name, 80), kind, problems[0])
	}
	return nil
}

func missingOr(err error, kind, name string) error {
	if apierrors.IsNotFound(err) {
		return missing("there is no %s %q in this namespace", kind, name)
	}
	if apierrors.IsForbidden(err) {
		return missing("the operator may not read the %s %q: %v", kind, name, err)
	}
	return fmt.Errorf("read %s %q: %w", kind, name, err)
}

// refusedAddress is the verdict on an address that cannot be right, or leads to no database; nil: it is not that. It is looked at again as soon as a
// Secret that is missing: most of it is of Secrets, and who puts one right has nothing to tell us with. Databases leaves alone what a server
// refused meanwhile, as long as the address is the same.
func refusedAddress(err error) *verdict {
	if storage.CodeOf(err) != storage.CodeInvalidSpec {
		return nil
	}
	v := stalled(v1alpha1.ReasonInvalidSpec, "%s", err)
	v.after = secretRetry
	return v
}

func missing(format string, args ...any) error {
	return &waiting{reason: v1alpha1.ReasonSecretMissing, message: fmt.Sprintf(format, args...), after: secretRetry}
}

// connection resolves the address of a database. The URL of a Secret is taken as it is, but for hosts without a dot.
//
// Errors: a *waiting with SecretMissing; storage.CodeInvalidSpec without a part of the URL; those of the API server.
func (r *resolver) connection(ctx context.Context, in *v1alpha1.PostgresDatabase) (Connection, error) {
	if in == nil || (in.URLFrom == nil) == (in.Connection == nil) {
		return Connection{}, storage.Refuse(storage.CodeInvalidSpec,
			"spec.database.postgres: exactly one of urlFrom and connection must be set; a cluster serves PostgreSQL only")
	}
	out := Connection{
		Name:   databaseName(in, r.namespace),
		Schema: cmp.Or(in.Schema, v1alpha1.DefaultPostgresSchema),
		Pooler: string(cmp.Or(in.Pooler, v1alpha1.PoolerNone)),
	}
	var text string
	var err error
	if in.URLFrom != nil {
		text, err = r.secretValue(ctx, in.URLFrom.SecretKeyRef)
	} else {
		text, err = r.assemble(ctx, in.Connection)
	}
	if err != nil {
		return Connection{}, err
	}
	if in.TLS != nil {
		if err := r.addTLS(ctx, in.TLS, &out); err != nil {
			return Connection{}, err
		}
	}
	return out, out.setURL(text, r.namespace)
}

// databaseName is Connection.Name. What stands in a Secret is never shown, host and database included: whoever may edit the spec and not read the
// Secret could take any key of it for one of them (docs/decisions/0011-secrets-are-used-not-shown.md).
func databaseName(in *v1alpha1.PostgresDatabase, namespace string) string {
	key := func(from *v1alpha1.SecretValue) string {
		return fmt.Sprintf("key %q of Secret %q", from.SecretKeyRef.Key, from.SecretKeyRef.Name)
	}
	if in.URLFrom != nil {
		return "the database of " + key(in.URLFrom)
	}
	of := in.Connection
	part := func(from *v1alpha1.SecretValue, value string) string {
		if from == nil {
			return value
		}
		return "(" + key(from) + ")"
	}
	host := address.InNamespace(of.Host, namespace)
	if strings.Contains(host, ":") {
		host = "[" + strings.Trim(host, "[]") + "]"
	}
	port := int32(v1alpha1.DefaultPostgresPort)
	if of.Port != nil {
		port = *of.Port
	}
	return part(of.HostFrom, host) + ":" + part(of.PortFrom, strconv.Itoa(int(port))) + "/" + part(of.DatabaseFrom, of.Database)
}

func (r *resolver) addTLS(ctx context.Context, in *v1alpha1.PostgresTLS, out *Connection) error {
	for _, part := range []struct {
		from *v1alpha1.SecretValue
		to   *Secret
	}{{in.CAFrom, &out.TLSCA}, {in.CertFrom, &out.TLSCert}, {in.KeyFrom, &out.TLSKey}} {
		if part.from == nil {
			continue
		}
		value, err := r.secretValue(ctx, part.from.SecretKeyRef)
		if err != nil {
			return err
		}
		*part.to = Secret(value)
	}
	return nil
}

// assemble makes a URL from the parts of an address, so that any character may stand in a password.
func (r *resolver) assemble(ctx context.Context, in *v1alpha1.PostgresConnection) (string, error) {
	host, database, password := in.Host, in.Database, ""
	port := strconv.Itoa(v1alpha1.DefaultPostgresPort)
	if in.Port != nil {
		port = strconv.Itoa(int(*in.Port))
	}
	user, err := r.secretValue(ctx, in.UserFrom.SecretKeyRef)
	if err != nil {
		return "", err
	}
	for _, part := range []struct {
		from *v1alpha1.SecretValue
		to   *string
	}{{in.HostFrom, &host}, {in.PortFrom, &port}, {in.DatabaseFrom, &database}, {in.PasswordFrom, &password}} {
		if part.from == nil {
			continue
		}
		if *part.to, err = r.secretValue(ctx, part.from.SecretKeyRef); err != nil {
			return "", err
		}
	}
	text, err := address.Parts{
		Host: host, Port: port, Database: database, User: user, Password: password, SSLMode: string(cmp.Or(in.SSLMode, defaultSSLMode)),
	}.URL()
	if err != nil {
		return "", storage.Refuse(storage.CodeInvalidSpec, "spec.database.postgres.connection: %v", err)
	}
	return text, nil
}

// defaultSSLMode is what the API server sets where none is given.
const defaultSSLMode v1alpha1.SSLMode = "verify-full"

// errURL does not say what is wrong: the place where it goes wrong can be the password.
func errURL() error {
	return storage.Refuse(storage.CodeInvalidSpec,
		"spec.database.postgres: the connection string cannot be read: postgres://user:password@host:port/database is expected, with special characters in user and password percent-encoded")
}

// setURL takes a connection string apart as far as the operator has to know it, and names hosts in full. The rest is the Opener's to check.
func (c *Connection) setURL(text, namespace string) error {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || scheme != "postgres" && scheme != "postgresql" {
		return errURL()
	}
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	userinfo, hosts := "", authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		userinfo, hosts = authority[:i+1], authority[i+1:]
	}
	parsed, err := url.Parse("postgres://" + userinfo + "host" + tail)
	// An @ after the host means that a character of the password was taken for its end: what follows would go to another server.
	if err != nil || parsed.Fragment != "" || parsed.User.Username() == "" || strings.Contains(parsed.EscapedPath()+parsed.RawQuery, "@") {
		return errURL()
	}
	query := parsed.Query()
	for _, name := range []string{"host", "hostaddr", "port", "dbname", "user"} {
		if query.Has(name) {
			return storage.Refuse(storage.CodeInvalidSpec, "spec.database.postgres: the connection string has the parameter %s", name).
				WithHint("put it in its place: postgres://user:password@host:port/database")
		}
	}
	places, err := qualifyHosts(hosts, namespace)
	if err != nil {
		return err
	}
	c.Server = strings.Join(places, ",")
	c.Address = c.Server + "/" + strings.TrimPrefix(parsed.Path, "/")
	c.User = parsed.User.Username()
	c.URL = Secret("postgres://" + userinfo + c.Server + tail)
	return nil
}

// qualifyHosts names each host of a list like "a:5432,b" in full: a name without a dot is a Service of the object's own namespace, for
// the operator lives in another one.
func qualifyHosts(list, namespace string) ([]string, error) {
	var places []string
	for _, place := range strings.Split(list, ",") {
		host, port, err := net.SplitHostPort(place)
		if err != nil {
			host, port = strings.Trim(place, "[]"), strconv.Itoa(v1alpha1.DefaultPostgresPort)
		}
		if host, err = url.PathUnescape(host); err != nil || host == "" {
			return nil, errURL()
		}
		if strings.ContainsAny(host, "/@") {
			return nil, storage.Refuse(storage.CodeInvalidSpec, "spec.database.postgres: the connection string has a socket directory as host").
				WithHint("name a host that is reached by TCP")
		}
		places = append(places, net.JoinHostPort(address.InNamespace(host, namespace), port))
	}
	return places, nil
}
