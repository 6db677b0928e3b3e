package controllers

import (
	"context"
	"encoding/json"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

var _ = Describe("A connection", func() {
	DescribeTable("is taken from a connection string as it is, with hosts named in full:",
		func(url, server, address, user string) {
			var c Connection
			Expect(c.setURL(url, "shop")).To(Succeed())
			Expect(c.Server).To(Equal(server))
			Expect(c.Address).To(Equal(address))
			Expect(c.User).To(Equal(user))
		},
		Entry("a Service of the namespace", "postgresql://app:s@clinic-rw/app", "clinic-rw.shop.svc:5432", "clinic-rw.shop.svc:5432/app", "app"),
		Entry("a name in full", "postgres://app:s@clinic-rw.shop:6432/app?sslmode=require", "clinic-rw.shop:6432", "clinic-rw.shop:6432/app", "app"),
		Entry("the manager's own host is a Service too", "postgres://app:s@localhost/app", "localhost.shop.svc:5432", "localhost.shop.svc:5432/app", "app"),
		Entry("an address", "postgres://app:s@10.0.0.7:5433/app", "10.0.0.7:5433", "10.0.0.7:5433/app", "app"),
		Entry("an IPv6 address", "postgres://app:s@[fd00::1]:5433/app", "[fd00::1]:5433", "[fd00::1]:5433/app", "app"),
		Entry("several hosts", "postgres://app:s@a:1,b:2/app", "a.shop.svc:1,b.shop.svc:2", "a.shop.svc:1,b.shop.svc:2/app", "app"),
		Entry("characters that are encoded", "postgres://a%40b:p%40ss%2Fw%23rd@db.shop/app", "db.shop:5432", "db.shop:5432/app", "a@b"),
	)

	DescribeTable("is refused without a word of what could be a password:",
		func(url, message string) {
			var c Connection
			err := c.setURL(url, "shop")
			Expect(storage.ClassOf(err)).To(Equal(storage.ClassInvalidSpec))
			Expect(err.Error()).To(ContainSubstring(message))
			Expect(err.Error()).NotTo(ContainSubstring("S3CRET"))
			Expect(c.URL).To(BeEmpty())
		},
		Entry("characters that are not encoded, which would go to another host", "postgres://op:S3CRET@ss/w@db/x", "cannot be read"),
		Entry("a question mark that is not encoded, behind what looks like a host", "postgres://op:ab@ss/x?S3CRET@db/x", "cannot be read"),
		Entry("a fragment", "postgres://op:S3CRET/w#rd@db/x", "cannot be read"),
		Entry("a broken escape", "postgres://op:S3CRET%zz@db/x", "cannot be read"),
		Entry("the keyword form", "host=db password='S3CRET' dbname=x", "cannot be read"),
		Entry("no user", "postgres://db/x", "cannot be read"),
		Entry("no host", "postgres://op:S3CRET@/x", "cannot be read"),
		Entry("a socket", "postgres://op:S3CRET@%2Fvar%2Frun/x", "socket"),
		Entry("another host in a parameter", "postgres://op:S3CRET@db/x?host=/tmp", "parameter host"),
	)

	It("is made of parts, whatever characters they hold, and reads each Secret once", func() {
		namespace := newNamespace(context.Background())
		password := `p@ss/w#rd?%"' \пароль`
		newParts := &corev1.Secret{StringData: map[string]string{"user": "app", "password": password + "\n", "host": "clinic-rw", "port": "6432"}}
		newParts.Namespace, newParts.Name = namespace, "parts"
		Expect(suite.admin.Create(context.Background(), newParts)).To(Succeed())
		from := func(key string) *v1alpha1.SecretValue {
			return &v1alpha1.SecretValue{SecretKeyRef: v1alpha1.KeyReference{Name: "parts", Key: key}}
		}
		in := &v1alpha1.PostgresDatabase{Connection: &v1alpha1.PostgresConnection{
			HostFrom: from("host"), PortFrom: from("port"), Database: "app", UserFrom: *from("user"), PasswordFrom: from("password"),
		}}
		c, err := newResolver(suite.operator, namespace).connection(context.Background(), in)
		Expect(err).NotTo(HaveOccurred())
		Expect(c.Server).To(Equal("clinic-rw." + namespace + ".svc:6432"))
		Expect(c.Name).To(Equal(`(key "host" of Secret "parts"):(key "port" of Secret "parts")/app`))
		Expect(string(c.URL)).To(ContainSubstring("sslmode=verify-full"))
		Expect(partsOf(string(c.URL))["password"]).To(Equal(password))
		text, err := json.Marshal(c)
		Expect(err).NotTo(HaveOccurred())
		for _, shown := range []string{fmt.Sprint(c), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c), string(text)} {
			Expect(shown).NotTo(ContainSubstring("p@ss"))
			Expect(shown).NotTo(ContainSubstring("p%40ss"))
		}
	})

	DescribeTable("is called by what the spec says, and by the keys of the Secrets that say the rest:",
		func(in v1alpha1.PostgresDatabase, name string) {
			Expect(databaseName(&in, "shop")).To(Equal(name))
		},
		Entry("a connection string", v1alpha1.PostgresDatabase{URLFrom: keyOf("app", "uri")}, `the database of key "uri" of Secret "app"`),
		Entry("parts of the spec", v1alpha1.PostgresDatabase{Connection: &v1alpha1.PostgresConnection{Host: "clinic-rw", Database: "app"}},
			"clinic-rw.shop.svc:5432/app"),
		Entry("an IPv6 address", v1alpha1.PostgresDatabase{Connection: &v1alpha1.PostgresConnection{Host: "fd00::1", Database: "app"}}, "[fd00::1]:5432/app"),
		Entry("parts of Secrets", v1alpha1.PostgresDatabase{Connection: &v1alpha1.PostgresConnection{Host: "db.x", DatabaseFrom: keyOf("app", "dbname")}},
			`db.x:5432/(key "dbname" of Secret "app")`),
	)

	DescribeTable("child names are DNS labels of at most 63 characters and never the same for two checkpoints:",
		func(schema, checkpoint, name string) {
			got := childName(schema, checkpoint)
			Expect(got).To(Equal(name))
			Expect(len(got)).To(BeNumerically("<=", 63))
			Expect(dnsLabel.MatchString(got)).To(BeTrue())
		},
		Entry("plain", "clinic", "name-search", "clinic-name-search"),
		Entry("capitals", "clinic", "Name-Search", "clinic-name-search-8e1d60bb"),
		Entry("other characters", "clinic", "name.search", "clinic-name-search-c585272e"),
	)
	It("child names that were cut differ", func() {
		long := "a-schema-whose-name-is-as-long-as-it-may-be-for-a-label-of-dns"
		a, b := childName(long, "first"), childName(long, "second")
		Expect(a).NotTo(Equal(b))
		for _, name := range []string{a, b} {
			Expect(len(name)).To(BeNumerically("<=", 63))
			Expect(dnsLabel.MatchString(name)).To(BeTrue())
		}
	})
})

func keyOf(secret, key string) *v1alpha1.SecretValue {
	return &v1alpha1.SecretValue{SecretKeyRef: v1alpha1.KeyReference{Name: secret, Key: key}}
}
