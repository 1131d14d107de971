package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// folders is where volumes and snapshots are. Each is a folder with its data and what is known
// about it, and is there whole or not at all.
type folders struct{ root string }

const (
	volumes   = "volumes"
	snapshots = "snapshots"
	groups    = "groups"
	partial   = "partial"
)

// about is what is known about a volume, a snapshot or a group of snapshots.
type about struct {
	Names     []string `json:"names"`
	Size      int64    `json:"size"`
	CreatedMS int64    `json:"created_ms"`
	// Source is the volume that a snapshot was taken of.
	Source string `json:"source,omitempty"`
	// Group is what a snapshot belongs to, if to any.
	Group string `json:"group,omitempty"`
	// Members are the snapshots of a group.
	Members []string `json:"members,omitempty"`
}

var errGone = errors.New("not found")

func openFolders(root string) (*folders, error) {
	// What was not finished when another driver ended never will be.
	err := os.RemoveAll(filepath.Join(root, partial))
	for _, kind := range []string{volumes, snapshots, groups, partial} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(root, kind), 0o755))
	}
	return &folders{root: root}, err
}

func (f *folders) path(kind, id string) string { return filepath.Join(f.root, kind, id) }

func (f *folders) data(kind, id string) string { return filepath.Join(f.path(kind, id), "data") }

// read finds what is known about something, errGone if it is not there.
func (f *folders) read(kind, id string) (*about, error) {
	if !isName(id) {
		return nil, errGone
	}
	text, err := os.ReadFile(filepath.Join(f.path(kind, id), "about.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errGone
	}
	var found about
	if err == nil {
		err = json.Unmarshal(text, &found)
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "cannot read what is known about %s: %v", id, err)
	}
	return &found, nil
}

// create makes something, with a copy of the data in source if that is not empty.
func (f *folders) create(ctx context.Context, kind, id, source string, known *about) error {
	if !isName(id) {
		return status.Errorf(codes.InvalidArgument, "not a name: %q", id)
	}
	err := f.tryCreate(ctx, kind, id, source, known)
	if err != nil {
		return status.Errorf(codes.Internal, "cannot create %s: %v", id, err)
	}
	return nil
}

func (f *folders) tryCreate(ctx context.Context, kind, id, source string, known *about) error {
	folder, err := os.MkdirTemp(f.path(partial, ""), "")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	data := filepath.Join(folder, "data")
	// Any user of any pod may write.
	if err := errors.Join(os.Mkdir(data, 0o777), os.Chmod(data, 0o777)); err != nil {
		return err
	}
	if source != "" {
		// Owners, modes, links and times too; the blocks are shared where the file system can.
		copied := exec.CommandContext(ctx, "cp", "--archive", "--reflink=auto", "--", source+"/.", data)
		if said, err := copied.CombinedOutput(); err != nil {
			return errors.Join(err, errors.New(strings.TrimSpace(string(said))))
		}
	}
	text, err := json.Marshal(known)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "about.json"), text, 0o644); err != nil {
		return err
	}
	return os.Rename(folder, f.path(kind, id))
}

// remove is done when nothing is there, whether or not something was.
func (f *folders) remove(kind, id string) error {
	if !isName(id) {
		return nil
	}
	folder, err := os.MkdirTemp(f.path(partial, ""), "")
	if err == nil {
		// Moved away first: nobody may find half of it.
		if err = os.Rename(f.path(kind, id), filepath.Join(folder, id)); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		err = errors.Join(err, os.RemoveAll(folder))
	}
	if err != nil {
		return status.Errorf(codes.Internal, "cannot remove %s: %v", id, err)
	}
	return nil
}

// list is the ids of one kind, in order.
func (f *folders) list(kind string) ([]string, error) {
	entries, err := os.ReadDir(f.path(kind, ""))
	if err != nil {
		return nil, status.Errorf(codes.Internal, "cannot list %s: %v", kind, err)
	}
	var ids []string
	for _, entry := range entries {
		ids = append(ids, entry.Name())
	}
	return ids, nil
}

// isName says whether an id names a folder of its own within another.
func isName(id string) bool {
	return id != "" && id != "." && id != ".." && !strings.Contains(id, "/")
}
