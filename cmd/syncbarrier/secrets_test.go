package main

import (
	"strings"
	"testing"
)

// TestWhatStandsInAMountedSecretIsInNoLog takes a password for each part of an address: whoever edits a SyncSchema says which key of which Secret
// is mounted as what, and reads the log of the worker and the words that it ended with.
func TestWhatStandsInAMountedSecretIsInNoLog(t *testing.T) {
	d := postgresTarget(t)
	const marker = "S3CRET-7f3a"
	for name, c := range map[string]struct {
		files map[string]string
		says  string
	}{
		"host":      {map[string]string{"host": marker}, "its host"},
		"port":      {map[string]string{"port": marker}, "the port is no number"},
		"database":  {map[string]string{"database": marker}, "3D000"},
		"user":      {map[string]string{"user": marker}, "28P01"},
		"password":  {map[string]string{"password": marker}, "28P01"},
		"mode":      {map[string]string{"sslmode": marker}, "sslmode is invalid"},
		"a key":     {map[string]string{"user": "-----BEGIN KEY-----\n" + marker + "\n"}, "the user is no name"},
		"a CA":      {map[string]string{"ca.crt": marker, "sslmode": "verify-full"}, "CA"},
		"an URL":    {map[string]string{"url": "postgres://" + marker + ":" + marker + "@" + marker + "/" + marker}, "its host"},
		"no URL":    {map[string]string{"url": marker}, "must begin with postgres://"},
		"a setting": {map[string]string{"url": "postgres://u:p@db/app?connect_timeout=" + marker}, "connect_timeout is invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := newFolder(t, d.address)
			f.write(t, c.files)
			for _, args := range [][]string{{"status"}, {"status", "-o", "json"}, append(work("claim-1"), "--timeout=3s")} {
				r := runProgram(t, "", append(args, "--database-file", string(f))...)
				// A worker may give up before a slow resolver does.
				if says := strings.Contains(r.out+r.errors, c.says); r.code == 0 || r.out+r.errors == "" || args[0] == "status" && !says {
					t.Errorf("%q ended with %d and does not say %q:\n%s%s", args, r.code, c.says, r.out, r.errors)
				}
				if said := strings.ToLower(r.out + r.errors); strings.Contains(said, strings.ToLower(marker)) {
					t.Errorf("%q shows it:\n%s%s", args, r.out, r.errors)
				}
			}
		})
	}
}
