package controllers

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

const (
	databaseVolume = "syncbarrier-database"
	// annotationDatabase begins the annotations of a pod that hold the parts of the address which stand in the spec and not in a Secret.
	annotationDatabase = labelPrefix + "database-"
	// readableByAll: the worker's user is not known before the pod runs, and nobody else is in the pod.
	readableByAll = 0o444
)

// Files of the folder that a worker reads its database from; the command line's --database-file takes such a folder.
const (
	fileURL       = "url"
	fileHost      = "host"
	filePort      = "port"
	fileDatabase  = "database"
	fileUser      = "user"
	filePassword  = "password"
	fileSSLMode   = "sslmode"
	fileNamespace = "namespace"
	fileCA        = "ca.crt"
	fileCert      = "tls.crt"
	fileKey       = "tls.key"
)

// databaseFiles says where each file of the folder comes from: a Secret's key, or a value of the spec. Files follow a Secret that changes,
// which variables of the environment would not.
func databaseFiles(database *v1alpha1.PostgresDatabase) (secrets map[string]*v1alpha1.SecretValue, values map[string]string) {
	secrets, values = map[string]*v1alpha1.SecretValue{}, map[string]string{}
	if database.URLFrom != nil {
		secrets[fileURL] = database.URLFrom
	}
	if c := database.Connection; c != nil {
		values[fileHost], values[fileDatabase], values[fileSSLMode] = c.Host, c.Database, string(cmp.Or(c.SSLMode, defaultSSLMode))
		if c.Port != nil {
			values[filePort] = strconv.Itoa(int(*c.Port))
		}
		secrets[fileHost], secrets[filePort], secrets[fileDatabase] = c.HostFrom, c.PortFrom, c.DatabaseFrom
		secrets[fileUser], secrets[filePassword] = &c.UserFrom, c.PasswordFrom
	}
	if tls := database.TLS; tls != nil {
		secrets[fileCA], secrets[fileCert], secrets[fileKey] = tls.CAFrom, tls.CertFrom, tls.KeyFrom
	}
	maps.DeleteFunc(secrets, func(_ string, from *v1alpha1.SecretValue) bool { return from == nil })
	maps.DeleteFunc(values, func(_, value string) bool { return value == "" })
	return secrets, values
}

// addDatabase gives the pod the folder, and its containers the mount.
func addDatabase(template *corev1.PodTemplateSpec, database *v1alpha1.PostgresDatabase) {
	secrets, values := databaseFiles(database)
	mode := int32(readableByAll)
	var sources []corev1.VolumeProjection
	for _, file := range slices.Sorted(maps.Keys(secrets)) {
		from := secrets[file].SecretKeyRef
		sources = append(sources, corev1.VolumeProjection{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: from.Name},
			Items:                []corev1.KeyToPath{{Key: from.Key, Path: file}},
		}})
	}
	fields := []corev1.DownwardAPIVolumeFile{{Path: fileNamespace, FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}}}
	for _, file := range slices.Sorted(maps.Keys(values)) {
		template.Annotations[annotationDatabase+file] = values[file]
		fields = append(fields, corev1.DownwardAPIVolumeFile{Path: file, FieldRef: &corev1.ObjectFieldSelector{
			APIVersion: "v1", FieldPath: "metadata.annotations['" + annotationDatabase + file + "']",
		}})
	}
	sources = append(sources, corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: fields}})
	template.Spec.Volumes = append(template.Spec.Volumes, corev1.Volume{
		Name: databaseVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources, DefaultMode: &mode}},
	})
	for i := range template.Spec.Containers {
		container := &template.Spec.Containers[i]
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: databaseVolume, MountPath: databaseFolder, ReadOnly: true})
	}
}
