package testcluster

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// Request is one request that the API server answered, from its audit log.
type Request struct {
	// User is who asked, for instance system:serviceaccount:shop:default.
	User string
	// Verb is what RBAC calls it: get, list, watch, create, update, patch, delete.
	Verb string
	// Group and Resource say of what; Resource is "pods/status" for a
	// subresource. Both are empty for a path that is no resource.
	Group, Resource string
	// Namespace and Name are of the object; Name is empty for a list.
	Namespace, Name string
	// Path is the request's address without host and query.
	Path string
	// Allowed says that authorization let it pass, whatever became of it.
	Allowed bool
}

// auditEvent is what is read of audit.k8s.io/v1 Event.
type auditEvent struct {
	RequestURI string `json:"requestURI"`
	Verb       string `json:"verb"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	Annotations map[string]string `json:"annotations"`
}

func (c *Cluster) auditLog() string { return c.file("audit.log") }

// Requests returns what a ServiceAccount asked the API server since its start,
// oldest first. Requests under way are not in it, but for watches.
func (c *Cluster) Requests(namespace, serviceAccount string) []Request {
	c.t.Helper()
	file, err := os.Open(c.auditLog())
	if err != nil {
		c.t.Fatalf("open the audit log: %v", err)
	}
	defer file.Close()
	requests, err := readRequests(file, "system:serviceaccount:"+namespace+":"+serviceAccount)
	if err != nil {
		c.t.Fatalf("read the audit log: %v", err)
	}
	return requests
}

func readRequests(log io.Reader, user string) ([]Request, error) {
	var requests []Request
	reader := bufio.NewReader(log)
	for {
		line, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return requests, nil // what stands after the last line end is being written
		}
		if err != nil {
			return nil, err
		}
		var event auditEvent
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("an event of the audit log: %w", err)
		}
		if event.User.Username == user {
			requests = append(requests, event.request())
		}
	}
}

func (e auditEvent) request() Request {
	path, _, _ := strings.Cut(e.RequestURI, "?")
	resource := e.ObjectRef.Resource
	if e.ObjectRef.Subresource != "" {
		resource += "/" + e.ObjectRef.Subresource
	}
	return Request{
		User: e.User.Username, Verb: e.Verb, Group: e.ObjectRef.APIGroup, Resource: resource,
		Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name, Path: path,
		Allowed: e.Annotations["authorization.k8s.io/decision"] == "allow",
	}
}

// Unused returns what some rules allow and none of the requests needed, each as
// "VERB GROUP/RESOURCE [NAME]" or "VERB PATH". A rule with several groups,
// resources, names or verbs allows each combination, and each must be needed.
func Unused(rules []rbacv1.PolicyRule, requests []Request) []string {
	var unused []string
	for _, rule := range rules {
		for _, verb := range rule.Verbs {
			for _, allowed := range permissionsOf(rule, verb) {
				if !slices.ContainsFunc(requests, allowed.covers) {
					unused = append(unused, allowed.String())
				}
			}
		}
	}
	slices.Sort(unused)
	return slices.Compact(unused)
}

// permission is one thing that a rule allows.
type permission struct {
	verb, group, resource string
	name                  string // any, if empty
	path                  string // of no resource
}

func (p permission) String() string {
	if p.path != "" {
		return p.verb + " " + p.path
	}
	group := p.group
	if group == "" {
		group = "core"
	}
	return strings.TrimSpace(p.verb + " " + group + "/" + p.resource + " " + p.name)
}

func (p permission) covers(request Request) bool {
	if request.Verb != p.verb {
		return false
	}
	if p.path != "" {
		return request.Path == p.path
	}
	return request.Group == p.group && request.Resource == p.resource && (p.name == "" || request.Name == p.name)
}

// permissionsOf spells a rule out for one of its verbs.
func permissionsOf(rule rbacv1.PolicyRule, verb string) []permission {
	var spelt []permission
	for _, path := range rule.NonResourceURLs {
		spelt = append(spelt, permission{verb: verb, path: path})
	}
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, name := range names {
				spelt = append(spelt, permission{verb: verb, group: group, resource: resource, name: name})
			}
		}
	}
	return spelt
}
