package cli

import (
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/syncbarrier/syncbarrier/internal/clock"
)

// clusterTime is the time of a cluster, as its last answer gave it. A time that is written into an object is compared with others of
// the cluster, and the clock of a person's machine may be minutes off.
type clusterTime struct {
	fallback clock.Clock // before the first answer

	mu     sync.Mutex
	answer time.Time
}

// listen has the time taken from the Date of every answer.
func (t *clusterTime) listen(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return dated{next, t} })
}

// Now gives the time of the last answer, which is as old as the answer.
func (t *clusterTime) Now() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.answer.IsZero() {
		return t.fallback.Now()
	}
	return t.answer
}

// dated is a transport that tells a clusterTime what the Date of each answer is.
type dated struct {
	next http.RoundTripper
	time *clusterTime
}

func (d dated) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := d.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil { // an answer without one is as good as any other
		d.time.mu.Lock()
		d.time.answer = date
		d.time.mu.Unlock()
	}
	return response, nil
}
