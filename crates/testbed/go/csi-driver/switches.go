package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// switchFile is the path of the switches. No file means that all are off.
type switchFile string

// switches say what to do badly. Lists hold the names of claims and of snapshots, as
// namespace/name, and handles; "*" stands for all.
type switches struct {
	// ReadyAfterMS is the age at which a snapshot gets ready to use.
	ReadyAfterMS int64 `json:"ready_after_ms"`
	// NeverReady are snapshots that stay unready for as long as they are listed.
	NeverReady []string `json:"never_ready"`
	// CreateTakesMS is how long the creation of a snapshot takes, over all tries.
	CreateTakesMS int64 `json:"create_takes_ms"`
	// FailCreate are snapshots that cannot be created.
	FailCreate []string `json:"fail_create"`
	// FailCreateEvery makes every n-th snapshot fail, whenever it is tried.
	FailCreateEvery int `json:"fail_create_every"`
	// FailDelete are snapshots that cannot be deleted.
	FailDelete []string `json:"fail_delete"`
	// VolumeTakesMS is how long the creation of a volume takes, over all tries.
	VolumeTakesMS int64 `json:"volume_takes_ms"`
	// FailVolume are volumes that cannot be created.
	FailVolume []string `json:"fail_volume"`
}

func (f switchFile) read() (*switches, error) {
	text, err := os.ReadFile(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return &switches{}, nil
	}
	var found switches
	if err == nil {
		err = json.Unmarshal(text, &found)
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "cannot read the switches: %v", err)
	}
	return &found, nil
}

// hits says whether one of the names is on the list.
func hits(list []string, names ...string) bool {
	return slices.ContainsFunc(list, func(entry string) bool {
		return entry == "*" || slices.Contains(names, entry)
	})
}

// attempts remembers what was tried, in which order and since when, and lets nobody try the same
// thing twice at a time.
type attempts struct {
	mutex sync.Mutex
	known map[string]*attempt
	count int
}

type attempt struct {
	number  int // from 1, in the order of first tries
	began   time.Time
	running bool
}

func newAttempts() *attempts { return &attempts{known: map[string]*attempt{}} }

// begin says that a try begins; end must follow. It fails if the last try has not ended.
func (a *attempts) begin(id string) (*attempt, error) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	found := a.known[id]
	if found == nil {
		a.count++
		found = &attempt{number: a.count, began: time.Now()}
		a.known[id] = found
	}
	if found.running {
		return nil, status.Errorf(codes.Aborted, "%s is being worked on", id)
	}
	found.running = true
	return found, nil
}

func (a *attempts) end(try *attempt) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	try.running = false
}

// wait lets time pass until the first try is that old.
func (t *attempt) wait(ctx context.Context, age time.Duration) error {
	select {
	case <-time.After(age - time.Since(t.began)):
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
