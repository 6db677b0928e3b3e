package v1alpha1

// Database says where a database is.
//
// +kubebuilder:validation:XValidation:rule="has(self.postgres)",message="postgres is required: in a cluster Syncbarrier serves PostgreSQL; a SQLite file is served by the command line (--database sqlite:PATH)"
type Database struct {
	// postgres is a PostgreSQL database, of major version 14 to 18. It cannot be omitted: no other kind is served in a cluster.
	// +optional
	Postgres *PostgresDatabase `json:"postgres,omitempty"`
}

// PoolerMode says what stands between us and the server.
// +kubebuilder:validation:Enum=None;Transaction
type PoolerMode string

// The two modes.
const (
	// PoolerNone: the address is that of the server, or of a pooler that keeps sessions.
	PoolerNone PoolerMode = "None"
	// PoolerTransaction: the address is that of a pooler that gives out servers by transaction, so we use no session state.
	PoolerTransaction PoolerMode = "Transaction"
)

// PostgresDatabase says how a PostgreSQL database is reached. Nothing of the operator's own environment takes part: no PG*
// variables, password files or service files.
//
// +kubebuilder:validation:XValidation:rule="has(self.urlFrom) != has(self.connection)",message="exactly one of urlFrom and connection must be set"
type PostgresDatabase struct {
	// urlFrom takes a whole connection string from a Secret. A connection string with a file, service or socket parameter is
	// refused. If omitted connection must be set.
	// +optional
	URLFrom *SecretValue `json:"urlFrom,omitempty"`

	// connection gives the parts of the address one by one. If omitted urlFrom must be set.
	// +optional
	Connection *PostgresConnection `json:"connection,omitempty"`

	// tls takes the certificates of the connection from Secrets. If omitted the server's certificate, where it is verified, is
	// checked against the system's authorities, and no client certificate is sent.
	// +optional
	TLS *PostgresTLS `json:"tls,omitempty"`

	// schema is the database schema that holds the tables and everything of ours. If omitted it is public.
	// +optional
	// +kubebuilder:default=public
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Schema string `json:"schema,omitempty"`

	// pooler says what the address is: None, the default, for the server itself, or Transaction for a pooler that gives
	// out servers by transaction.
	// +optional
	// +kubebuilder:default=None
	Pooler PoolerMode `json:"pooler,omitempty"`
}

// SSLMode is the TLS mode of a connection, in PostgreSQL's words.
// +kubebuilder:validation:Enum=disable;allow;prefer;require;verify-ca;verify-full
type SSLMode string

// DefaultPostgresPort is the port where none is given.
const DefaultPostgresPort = 5432

// PostgresConnection gives the parts of a PostgreSQL address. Each part is a value of its own or a key of a Secret, so that
// Secrets written by other operators can be taken as they are.
//
// +kubebuilder:validation:XValidation:rule="has(self.host) != has(self.hostFrom)",message="exactly one of host and hostFrom must be set"
// +kubebuilder:validation:XValidation:rule="!(has(self.port) && has(self.portFrom))",message="at most one of port and portFrom may be set"
// +kubebuilder:validation:XValidation:rule="has(self.database) != has(self.databaseFrom)",message="exactly one of database and databaseFrom must be set"
type PostgresConnection struct {
	// host is the server's name or address. A name without a dot is a Service of the object's own namespace. If omitted
	// hostFrom must be set.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Host string `json:"host,omitempty"`

	// hostFrom takes the host from a Secret. If omitted host must be set.
	// +optional
	HostFrom *SecretValue `json:"hostFrom,omitempty"`

	// port is the server's port. If omitted, and portFrom too, it is 5432.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`

	// portFrom takes the port from a Secret. If omitted port counts.
	// +optional
	PortFrom *SecretValue `json:"portFrom,omitempty"`

	// database is the database's name. If omitted databaseFrom must be set.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Database string `json:"database,omitempty"`

	// databaseFrom takes the database's name from a Secret. If omitted database must be set.
	// +optional
	DatabaseFrom *SecretValue `json:"databaseFrom,omitempty"`

	// sslMode says whether the connection is encrypted and the server verified, in PostgreSQL's words. If omitted it is
	// verify-full: encrypted, and the certificate must fit the host.
	// +optional
	// +kubebuilder:default=verify-full
	SSLMode SSLMode `json:"sslMode,omitempty"`

	// userFrom takes the user's name from a Secret.
	// +required
	UserFrom SecretValue `json:"userFrom"`

	// passwordFrom takes the password from a Secret. If omitted no password is sent; the server then has to know the user by a
	// client certificate.
	// +optional
	PasswordFrom *SecretValue `json:"passwordFrom,omitempty"`
}

// PostgresTLS takes the certificates of a connection from Secrets, in PEM form.
//
// +kubebuilder:validation:XValidation:rule="has(self.certFrom) == has(self.keyFrom)",message="certFrom and keyFrom must be set together"
type PostgresTLS struct {
	// caFrom takes the certificates of the authorities that may have signed the server's. If omitted the system's
	// authorities count.
	// +optional
	CAFrom *SecretValue `json:"caFrom,omitempty"`

	// certFrom takes the client certificate, with keyFrom its key. If omitted no client certificate is sent.
	// +optional
	CertFrom *SecretValue `json:"certFrom,omitempty"`

	// keyFrom takes the key of the client certificate. It must be set where certFrom is; if omitted no client certificate is
	// sent.
	// +optional
	KeyFrom *SecretValue `json:"keyFrom,omitempty"`
}

// SecretValue is a value that stands in a Secret of the object's own namespace.
type SecretValue struct {
	// secretKeyRef names the Secret and the key in it.
	// +required
	SecretKeyRef KeyReference `json:"secretKeyRef"`
}

// KeyReference names one key of a Secret or ConfigMap of the object's own namespace. There is no way to name another
// namespace: its contents may be none of the author's business.
type KeyReference struct {
	// name is the name of the Secret or ConfigMap.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// key is the key in it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key"`
}
