package kubelet

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// field reads a field of the pod, as the downward API does.
func (p *pod) field(ref *corev1.ObjectFieldSelector) (string, error) {
	if ref == nil {
		return "", fmt.Errorf("only fields of the pod are stood in for")
	}
	switch ref.FieldPath {
	case "metadata.name":
		return p.Name, nil
	case "metadata.namespace":
		return p.Namespace, nil
	case "metadata.uid":
		return string(p.UID), nil
	}
	for prefix, values := range map[string]map[string]string{"metadata.annotations['": p.Annotations, "metadata.labels['": p.Labels} {
		if key, is := strings.CutPrefix(ref.FieldPath, prefix); is {
			return values[strings.TrimSuffix(key, "']")], nil
		}
	}
	return "", fmt.Errorf("field %s is not stood in for", ref.FieldPath)
}

// environment gives the variables of a container, each with those before it expanded in it.
func (p *pod) environment(container corev1.Container) (map[string]string, error) {
	values := map[string]string{}
	for _, variable := range container.Env {
		value, err := p.variable(variable, values)
		if err != nil {
			return nil, fmt.Errorf("variable %s: %w", variable.Name, err)
		}
		values[variable.Name] = value
	}
	return values, nil
}

func (p *pod) variable(variable corev1.EnvVar, before map[string]string) (string, error) {
	from := variable.ValueFrom
	switch {
	case from == nil:
		return expand(variable.Value, before), nil
	case from.FieldRef != nil:
		return p.field(from.FieldRef)
	case from.SecretKeyRef != nil:
		secret, err := p.kubelet.clients.CoreV1().Secrets(p.Namespace).Get(p.ctx, from.SecretKeyRef.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		value, there := secret.Data[from.SecretKeyRef.Key]
		if !there {
			return "", fmt.Errorf("couldn't find key %s in Secret %s/%s", from.SecretKeyRef.Key, p.Namespace, from.SecretKeyRef.Name)
		}
		return string(value), nil
	}
	return "", fmt.Errorf("its source is not stood in for")
}

// expand replaces $(NAME) by the variable, if there is one, and $$ by a dollar sign (Kubernetes API, field command of a container).
func expand(text string, values map[string]string) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		rest := text[i:]
		if strings.HasPrefix(rest, "$$") {
			out.WriteByte('$')
			i++
			continue
		}
		if name, after, found := strings.Cut(rest, ")"); found && strings.HasPrefix(name, "$(") {
			if value, known := values[name[2:]]; known {
				out.WriteString(value)
				i = len(text) - len(after) - 1
				continue
			}
		}
		out.WriteByte(text[i])
	}
	return out.String()
}
