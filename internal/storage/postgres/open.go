package postgres

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// The words of Config.Pooler.
const (
	// PoolerNone: connections go to the server.
	PoolerNone = "None"
	// PoolerTransaction: a pooler in transaction mode is in between.
	PoolerTransaction = "Transaction"
)

const (
	connectTimeout        = 3 * time.Second
	idleClose             = 60 * time.Second
	defaultMaxConnections = 4
	defaultApplication    = "syncbarrier"
	defaultSchema         = "public"
	oldestServer          = 140000 // server_version_num of PostgreSQL 14

	// statementCache is how many prepared statements a connection keeps. Each names its database schema, and the schemas of a database share
	// connections: with the driver's 512 a connection used for 50 schemas grows to 33 MiB on the server, with 32 to 19.
	statementCache = 32
)

// clientEncoding is the setting that says in what encoding the texts of a session are.
const (
	clientEncoding = "client_encoding"
	utf8Encoding   = "UTF8"
)

// Config says which database schema to open and how.
type Config struct {
	// URL is postgres://user:password@host:port/database?parameters. Host and user must be in it: nothing of the environment or the
	// disk takes part, no PG* variable, password file, service file or default certificate.
	URL string
	// Name is what messages call the database by, instead of its host, port and name, if these are not to stand there; no message has a word of
	// them then, nor the user's name when a connection is refused.
	Name string
	// Schema is the database schema that everything lives in; "": public. OpenDatabase takes no notice of it.
	Schema string
	// Pooler is PoolerNone ("" too) or PoolerTransaction.
	Pooler string
	// SimpleProtocol sends every statement as text, for poolers and proxies that know nothing else.
	SimpleProtocol bool
	// Queries are those that Query may run.
	Queries []storage.RegisteredQuery
	// MaxConnections bounds the pool; 0: 4.
	MaxConnections int32
	// ApplicationName is shown in pg_stat_activity, unless the URL has one; "": syncbarrier.
	ApplicationName string
	// WriterSample is how long a plan looks at who writes to its sources; 0: 5 s.
	WriterSample time.Duration
	// TLSCA, TLSCert and TLSKey are PEM files. With a CA and no sslmode in the URL, the server's certificate is verified in full.
	TLSCA, TLSCert, TLSKey string
}

// Open connects to a database and learns what kind of server it is, within three seconds. It changes nothing. The URL never
// appears in an error.
//
// Errors: CodeInvalidSpec for a URL or setting that cannot be right, a database or schema that does not exist, a server older than
// PostgreSQL 14; CodeConnectionLost, CodeAuthenticationFailed.
func Open(ctx context.Context, config Config) (*Store, error) {
	database, err := OpenDatabase(ctx, config)
	if err != nil {
		return nil, err
	}
	s, err := database.find(ctx, config.Schema)
	if err != nil {
		database.Close()
		return nil, err
	}
	s.alone = true
	return s, nil
}

// newPool makes the pool. It does not connect yet.
func newPool(ctx context.Context, config Config) (*pgxpool.Pool, string, error) {
	switch config.Pooler {
	case "", PoolerNone, PoolerTransaction:
	default:
		return nil, "", storage.Refuse(storage.CodeInvalidSpec, "pooler: %q is neither %s nor %s", config.Pooler, PoolerNone, PoolerTransaction)
	}
	poolConfig, address, err := poolConfigFor(config)
	if err != nil {
		return nil, "", err
	}
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return nil, "", translate(err, "make the connection pool of "+address)
	}
	return pool, address, nil
}

// poolConfigFor turns a Config into the driver's.
func poolConfigFor(config Config) (*pgxpool.Config, string, error) {
	target, err := parseURL(config.URL)
	if err != nil {
		return nil, "", err
	}
	if err := target.addTLS(config); err != nil {
		return nil, "", err
	}
	poolConfig, err := target.driverConfig()
	if err != nil {
		return nil, "", err
	}
	connConfig := poolConfig.ConnConfig
	if connConfig.RuntimeParams["application_name"] == "" {
		connConfig.RuntimeParams["application_name"] = defaultApplication
		if config.ApplicationName != "" {
			connConfig.RuntimeParams["application_name"] = config.ApplicationName
		}
	}
	// The driver sends names and keys as they are. A server that is not told takes them for the encoding of its database.
	connConfig.RuntimeParams[clientEncoding] = utf8Encoding
	connConfig.DialFunc = dialBounded(connConfig)
	connConfig.StatementCacheCapacity = statementCache
	switch {
	case config.SimpleProtocol:
		connConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	case config.Pooler == PoolerTransaction:
		// Prepared statements belong to a server connection, which behind the pooler is another one each time.
		connConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	connConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler { return &cancelHandler{conn: conn} }
	poolConfig.MaxConns = config.MaxConnections
	if poolConfig.MaxConns <= 0 {
		poolConfig.MaxConns = defaultMaxConnections
	}
	poolConfig.MinConns, poolConfig.MinIdleConns = 0, 0
	poolConfig.MaxConnIdleTime = idleClose
	poolConfig.HealthCheckPeriod = idleClose / 4
	poolConfig.PingTimeout = connectTimeout
	if connConfig.RequireAuth == "" && !pinned(config, &connConfig.Config) {
		// Any server that is reached by the name would be told the password. It proves nothing to it otherwise.
		connConfig.RequireAuth = "!password"
	}
	return poolConfig, cmp.Or(config.Name, target.address()), nil
}

// pinned says that no attempt of a connection reaches a server but one whose certificate is verified with a CA that was given. Those of public
// authorities are had by anybody for a server of his own.
func pinned(config Config, driver *pgconn.Config) bool {
	verified := func(with *tls.Config) bool {
		return with != nil && (!with.InsecureSkipVerify || with.VerifyPeerCertificate != nil) // the driver verifies without the name itself
	}
	unverified := func(fallback *pgconn.FallbackConfig) bool { return !verified(fallback.TLSConfig) }
	return config.TLSCA != "" && verified(driver.TLSConfig) && !slices.ContainsFunc(driver.Fallbacks, unverified)
}

// errURL is the sentence for a URL that cannot be read. What is wrong with it is not said, because the place where it goes wrong can
// be the password.
var errURL = errors.New("the database URL cannot be read: postgres://user:password@host:port/database is expected, with special characters in user and password percent-encoded")
