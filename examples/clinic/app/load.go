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
// error output. With VITALS half of them are about vital signs, as "vitals read 7 200", or "vitals misread 7 200" if they are not those of a
// patient. Half of the requests are made on a connection of their own: those that are kept go on to the pod that they were made to.
type load struct {
	target  string
	vitals  bool
	rows    int
	kept    *http.Client
	fresh   *http.Client
	mutex   sync.Mutex
	counted map[string]int
}

// runLoad reads TARGET, RATE (requests a second, "50"), PATIENTS, of how many it asks ("1000"), and VITALS.
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
		target: os.Getenv("TARGET"), vitals: setting("VITALS", "") != "", rows: rows, counted: map[string]int{},
		kept:  &http.Client{Timeout: 2 * requestTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: 16}},
		fresh: &http.Client{Timeout: 2 * requestTimeout, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	if err := l.reach(ctx); err != nil {
		return err
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

// reach waits until the clinic answers a request, whatever it says: users come to a service that is there. A Service has no way to pods that have
// just become Ready until kube-proxy has made it one, which takes seconds on a busy node.
func (l *load) reach(ctx context.Context) error {
	ctx, end := context.WithTimeout(ctx, time.Minute)
	defer end()
	pause := time.NewTicker(100 * time.Millisecond)
	defer pause.Stop()
	for {
		_, status, _, err := call(l.fresh, http.MethodGet, l.target+"/patients/1", "")
		if status != "error" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w", l.target, err)
		case <-pause.C:
		}
	}
}

// ask makes one request: two reads to a write.
func (l *load) ask(n int) {
	what, method, body := "read", http.MethodGet, ""
	if n%3 == 0 {
		what, method, body = "write", http.MethodPut, fmt.Sprintf(`{"name": "Renamed Patient %d"}`, n)
	}
	path := "patients"
	if l.vitals && n%4 < 2 {
		path = "vitals"
		if method == http.MethodPut {
			body = fmt.Sprintf(`{"first": %d}`, n)
		}
	}
	client := l.kept
	if n%2 == 0 {
		client = l.fresh
	}
	version, status, content, err := call(client, method, fmt.Sprintf("%s/%s/%d", l.target, path, 1+rand.IntN(l.rows)), body)
	if path == "vitals" {
		if what == "read" && status == "200" && !areVitals(content) {
			what, err = "misread", fmt.Errorf("version %s answers %s", version, content)
		}
		what = "vitals " + what
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.counted[what+" "+version+" "+status]++
}

func call(client *http.Client, method, url, body string) (version, status string, content []byte, err error) {
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return "none", "error", nil, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return "none", "error", nil, err
	}
	defer answer.Body.Close()
	content, err = io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("version %s answers %d: %s", answer.Header.Get(versionHeader), answer.StatusCode, content)
	}
	return answer.Header.Get(versionHeader), strconv.Itoa(answer.StatusCode), content, err
}

// areVitals says whether an answer holds vital signs as patients of the clinic have them: each is one more than the one before, and of
// those that one version knows and another does not there may be none.
func areVitals(answer []byte) bool {
	var found map[string]*int64
	if json.Unmarshal(answer, &found) != nil || found[signs[0]] == nil {
		return false
	}
	for i, sign := range signs {
		value := found[sign]
		if value == nil && i < len(signsOf(firstDerived-1)) || value != nil && *value != *found[signs[0]]+int64(i) {
			return false
		}
	}
	return true
}

func (l *load) print() error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return json.NewEncoder(os.Stdout).Encode(l.counted)
}
