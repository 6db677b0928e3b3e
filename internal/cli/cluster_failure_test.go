package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// A request that is under way when time is up says so, whichever error the client makes of it.
func TestAClusterThatIsAskedBeyondTheTimeoutSaysThatTimeWasUp(t *testing.T) {
	gaveUp := fmt.Errorf("gave up after 300ms (--timeout): %w", context.DeadlineExceeded)
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Nanosecond, gaveUp)
	defer cancel()
	<-ctx.Done()
	for _, clients := range []error{context.DeadlineExceeded, errors.New("client rate limiter Wait returned an error: would exceed the deadline")} {
		err := clusterFailure(ctx, "read SyncSchema shop/clinic", clients)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "read SyncSchema shop/clinic: gave up after 300ms (--timeout)") {
			t.Errorf("%v became %q", clients, err)
		}
	}
	if err := clusterFailure(ctx, "read", nil); err != nil {
		t.Errorf("no error became %v", err)
	}
}
