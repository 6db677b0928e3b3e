package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// load asks a clinic all the time, as its users do, and prints every second what came of it so far, as a line of JSON:
//
//	{"read 6 200": 812, "write 6 204": 400, "write 6 409": 12}
//
// reads and writes by the version that answered and the status. An answer that never came is "read none error", with its text on the
// error output. Half of the requests are made on a connection of their own: those that are kept go on to the pod that they were made to.
type load struct {
	target  string
	rows    int
	kept    *http.Client
	fresh   *http.Client
	mutex   sync.Mutex
	counted map[string]int
}

// runLoad reads TARGET, RATE (requests a second, "50") and PATIENTS, of how many it asks ("1000").
func runLoad(ctx context.Context) error {
	rate, err := strconv.Atoi(setting("RATE", "50"))
	if err != nil || rate < 1 || rate > 1000 {
		return errors.New("RATE is no number from 1 to 1000")
	}
	rows, err := strconv.Atoi(setting("PATIENTS", "1000"))
	if err != nil || rows < 1 {
		return errors.New("PATIENTS is no number from 1")
	}
	l := &load{
		target: os.Getenv("TARGET"), rows: rows, counted: map[string]int{},
		kept:  &http.Client{Timeout: 2 * requestTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: 16}},
		fresh: &http.Client{Timeout: 2 * requestTimeout, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	next, report := time.NewTicker(time.Second/time.Duration(rate)), time.NewTicker(time.Second)
	defer next.Stop()
	defer report.Stop()
	var requests sync.WaitGroup
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			requests.Wait()
			return l.print()
		case <-report.C:
			if err := l.print(); err != nil {
				return err
			}
		case <-next.C:
			requests.Go(func() { l.ask(n) })
		}
	}
}

// ask makes one request: two reads to a write.
func (l *load) ask(n int) {
	what, method, body := "read", http.MethodGet, ""
	if n%3 == 0 {
		what, method, body = "write", http.MethodPut, fmt.Sprintf(`{"name": "Renamed Patient %d"}`, n)
	}
	client := l.kept
	if n%2 == 0 {
		client = l.fresh
	}
	version, status, err := call(client, method, fmt.Sprintf("%s/patients/%d", l.target, 1+rand.IntN(l.rows)), body)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.counted[what+" "+version+" "+status]++
}

func call(client *http.Client, method, url, body string) (version, status string, err error) {
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return "none", "error", err
	}
	answer, err := client.Do(request)
	if err != nil {
		return "none", "error", err
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("version %s answers %d: %s", answer.Header.Get(versionHeader), answer.StatusCode, content)
	}
	return answer.Header.Get(versionHeader), strconv.Itoa(answer.StatusCode), err
}

func (l *load) print() error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return json.NewEncoder(os.Stdout).Encode(l.counted)
}
