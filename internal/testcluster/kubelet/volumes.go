package kubelet

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// writeVolumes writes the pod's volumes into its folder. It fails while a Secret or a key is missing.
func (p *pod) writeVolumes() error {
	mounts := map[string]string{}
	for _, volume := range p.Spec.Volumes {
		folder := filepath.Join(p.folder, "volumes", volume.Name)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		mounts[volume.Name] = folder
		switch {
		case volume.EmptyDir != nil:
		case volume.Projected != nil:
			for _, source := range volume.Projected.Sources {
				if err := p.project(folder, source); err != nil {
					return err
				}
			}
		default:
			return fmt.Errorf("volume %s is of a kind that is not stood in for", volume.Name)
		}
	}
	p.mu.Lock()
	p.mounts = mounts
	p.mu.Unlock()
	return nil
}

func (p *pod) project(folder string, source corev1.VolumeProjection) error {
	switch {
	case source.Secret != nil:
		secret, err := p.kubelet.clients.CoreV1().Secrets(p.Namespace).Get(p.ctx, source.Secret.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, item := range source.Secret.Items {
			value, there := secret.Data[item.Key]
			if !there {
				return fmt.Errorf("references non-existent secret key: %s", item.Key)
			}
			if err := place(filepath.Join(folder, item.Path), value); err != nil {
				return err
			}
		}
		return nil
	case source.DownwardAPI != nil:
		for _, item := range source.DownwardAPI.Items {
			value, err := p.field(item.FieldRef)
			if err != nil {
				return err
			}
			if err := place(filepath.Join(folder, item.Path), []byte(value)); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("a projected volume has a source that is not stood in for")
}

// place puts a file's content in its place at once, so that nobody reads half of it.
func place(path string, content []byte) error {
	if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, content) {
		return nil
	}
	next := path + ".next"
	if err := os.WriteFile(next, content, 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}
