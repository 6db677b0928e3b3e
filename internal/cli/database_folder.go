package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/syncbarrier/syncbarrier/internal/address"
)

// The files of a folder that --database-file may name: a whole address, or its parts, and the certificates beside them. It is how a
// cluster mounts Secrets; the operator makes such folders (docs/design.md section 7).
const (
	fileURL       = "url"
	fileHost      = "host"
	filePort      = "port"
	fileDatabase  = "database"
	fileUser      = "user"
	filePassword  = "password"
	fileSSLMode   = "sslmode"
	fileNamespace = "namespace" // where hosts without a dot are Services
	fileCA        = "ca.crt"
	fileCert      = "tls.crt"
	fileKey       = "tls.key"
)

// folderAddress reads a folder as it is now. No error holds anything that stands in a file.
func folderAddress(folder string) (Address, error) {
	files := map[string]string{}
	for _, name := range []string{fileURL, fileHost, filePort, fileDatabase, fileUser, filePassword, fileSSLMode, fileNamespace} {
		content, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return Address{}, usage(fmt.Errorf("read --database-file: %w", err))
		}
		files[name] = address.Clean(content)
	}
	whole := files[fileURL]
	if whole == "" {
		var err error
		whole, err = address.Parts{
			Host: files[fileHost], Port: files[filePort], Database: files[fileDatabase],
			User: files[fileUser], Password: files[filePassword], SSLMode: files[fileSSLMode],
		}.URL()
		if err != nil {
			return Address{}, usage(fmt.Errorf("folder of --database-file has no file %s, and of the parts %w", fileURL, err))
		}
	}
	// A cluster mounts Secrets as folders, and its logs are read by more people than its Secrets.
	out := Address{Database: address.URLInNamespace(whole, files[fileNamespace]), Name: "the database of --database-file"}
	for name, path := range map[string]*string{fileCA: &out.TLSCA, fileCert: &out.TLSCert, fileKey: &out.TLSKey} {
		if _, err := os.Stat(filepath.Join(folder, name)); err == nil {
			*path = filepath.Join(folder, name)
		}
	}
	return out, nil
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
