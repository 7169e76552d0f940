package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"e2e-clients/internal/figures"
	"e2e-clients/internal/report"
)

// reviews are the flags of modes review and paced.
type reviews struct {
	teams     string
	creates   bool
	escapes   int
	mayRefuse bool
}

func (r *reviews) bind(fs *flag.FlagSet) {
	fs.StringVar(&r.teams, "teams", "blue", "values of the label team of the reviewed objects, by turns: a,b,… (review, paced)")
	fs.BoolVar(&r.creates, "create", false, "review creations instead of updates (review, paced)")
	fs.IntVar(&r.escapes, "escapes", 0, "characters that are escaped, six bytes each, in each new object besides (review, paced)")
	fs.BoolVar(&r.mayRefuse, "may-refuse", false, "count the status 503, and do not take it for a failure (review, paced)")
}

// reviewer calls a webhook as the API server does.
type reviewer struct {
	client    http.Client
	url       string
	teams     []string
	bodies    []func(uid string) [][]byte
	mayRefuse bool
	refused   atomic.Int64

	mu     sync.Mutex
	byTeam []outcome
}

// review has workers call the webhook at --server, each again when it has the last answer.
func (p *Plan) review(ctx context.Context, config *rest.Config) (report.Fields, error) {
	caller, err := p.reviewer(ctx, config)
	if err != nil {
		return nil, err
	}
	all := p.closedLoop(ctx, p.workers, func(ctx context.Context, number int) error {
		return caller.timed(ctx, number, time.Now())
	})
	fields := caller.fields(all)
	fields["workers"] = p.workers
	return fields, nil
}

// paced calls it --rate times a second, whether or not it keeps up.
func (p *Plan) paced(ctx context.Context, config *rest.Config) (report.Fields, error) {
	caller, err := p.reviewer(ctx, config)
	if err != nil {
		return nil, err
	}
	var tasks sync.WaitGroup
	var mu sync.Mutex
	var all outcome
	started := time.Now()
	for number := range p.updates() {
		due := started.Add(time.Duration(float64(number) / p.rate * float64(time.Second)))
		time.Sleep(time.Until(due))
		if ctx.Err() != nil {
			break
		}
		began := time.Now()
		tasks.Go(func() {
			err := caller.timed(ctx, number, began)
			took := time.Since(began)
			mu.Lock()
			defer mu.Unlock()
			all.add(took, err)
		})
	}
	tasks.Wait()
	all.took = time.Since(started)
	return caller.fields(all), nil
}

func (p *Plan) reviewer(ctx context.Context, config *rest.Config) (*reviewer, error) {
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	// Like the API server's: HTTP/1.1 alone, and so many idle connections for so long.
	tlsConfig.NextProtos = []string{"http/1.1"}
	transport := &http.Transport{
		TLSClientConfig: tlsConfig, TLSHandshakeTimeout: 10 * time.Second, MaxIdleConnsPerHost: 25, IdleConnTimeout: 90 * time.Second,
	}
	teams := strings.Split(p.teams, ",")
	caller := &reviewer{
		client: http.Client{Transport: transport}, url: config.Host + "/validate?timeout=30s",
		teams: teams, mayRefuse: p.mayRefuse, byTeam: make([]outcome, len(teams)),
	}
	for _, team := range teams {
		caller.bodies = append(caller.bodies, p.reviewBody(team))
	}
	for number := range p.warmup {
		if err := caller.call(ctx, number); err != nil {
			return nil, fmt.Errorf("warm-up: %w", err)
		}
	}
	return caller, nil
}

// reviewBody returns the body of a review by the review's uid, in pieces: an update of a ConfigMap of the team, or with
// --create its creation. Order and members are the API server's.
func (p *Plan) reviewBody(team string) func(uid string) [][]byte {
	const managed = `"managedFields":[{"manager":"operator","operation":"Update","apiVersion":"v1","time":"2026-02-03T04:05:06Z",` +
		`"fieldsType":"FieldsV1","fieldsV1":{"f:data":{".":{},"f:settings":{}},"f:metadata":{"f:labels":{".":{},"f:app":{},"f:team":{}}}}}]`
	object := func(generation int, more string) string {
		return fmt.Sprintf(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"settings","namespace":"tenant-17",`+
			`"uid":"705ab4f5-6393-11e8-b7cc-42010a800002","resourceVersion":"%d","creationTimestamp":"2026-02-03T04:05:06Z",`+
			`"labels":{"app":"settings","team":%q},%s},"data":{"settings":%q%s}}`, 4000+generation, team, managed, noise(generation, p.bytes), more)
	}
	operation, old, more := "UPDATE", object(0, ""), ""
	if p.creates {
		operation, old = "CREATE", "null"
	}
	if p.escapes > 0 {
		more = `,"more":"` + strings.Repeat(`\u003c`, p.escapes) + `"`
	}
	head := `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"`
	const gvk, gvr = `{"group":"","version":"v1","kind":"ConfigMap"}`, `{"group":"","version":"v1","resource":"configmaps"}`
	tail := fmt.Sprintf(`","kind":%s,"resource":%s,"requestKind":%s,"requestResource":%s,"name":"settings","namespace":"tenant-17",`+
		`"operation":%q,"userInfo":{"username":"system:serviceaccount:tenant-17:deployer","uid":"5f4dcc3b-5aa7-65d6-1d83-27deb882cf99",`+
		`"groups":["system:serviceaccounts","system:serviceaccounts:tenant-17","system:authenticated"]},"object":%s,"oldObject":%s,`+
		`"dryRun":false,"options":{"kind":"%sOptions","apiVersion":"meta.k8s.io/v1","fieldManager":"operator"}}}`,
		gvk, gvr, gvk, gvr, operation, object(1, more), old, operation[:1]+strings.ToLower(operation[1:]))
	first, last := []byte(head), []byte(tail)
	return func(uid string) [][]byte { return [][]byte{first, []byte(uid), last} }
}

func (r *reviewer) timed(ctx context.Context, number int, began time.Time) error {
	err := r.call(ctx, number)
	took := time.Since(began)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byTeam[number%len(r.teams)].add(took, err)
	return err
}

func (r *reviewer) call(ctx context.Context, number int) error {
	uid := fmt.Sprintf("0df28fbd-5f5f-11e8-bc74-%012d", number)
	pieces, length := r.bodies[number%len(r.bodies)](uid), 0
	readers := make([]io.Reader, len(pieces))
	for i, piece := range pieces {
		readers[i], length = bytes.NewReader(piece), length+len(piece)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, io.MultiReader(readers...))
	if err != nil {
		return err
	}
	request.ContentLength = int64(length)
	request.Header = http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json, */*"}, "User-Agent": {"kube-apiserver-admission"},
	}
	answer, err := r.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode == http.StatusServiceUnavailable && r.mayRefuse {
		r.refused.Add(1)
		return nil
	}
	return allowed(uid, answer.StatusCode, body)
}

// allowed is nil where an answer allows the review.
func allowed(uid string, status int, body []byte) error {
	var review struct {
		Response struct {
			UID     string `json:"uid"`
			Allowed bool   `json:"allowed"`
		} `json:"response"`
	}
	if status != http.StatusOK {
		return fmt.Errorf("status %d: %s", status, body)
	}
	if err := json.Unmarshal(body, &review); err != nil {
		return err
	}
	if review.Response.UID != uid || !review.Response.Allowed {
		return errors.New("the answer allows another review, or none")
	}
	return nil
}

// fields are those of all calls, and the delays of each team's.
func (r *reviewer) fields(all outcome) report.Fields {
	fields := all.fields()
	byTeam := map[string]figures.Summary{}
	for at, team := range r.teams {
		byTeam[team] = figures.Summarize(r.byTeam[at].samples)
	}
	fields["by_team"], fields["refused"] = byTeam, r.refused.Load()
	return fields
}
