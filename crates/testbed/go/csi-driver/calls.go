package main

import (
	"context"
	"encoding/json"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// calls is a file with a line for the begin of each call and one for its end.
type calls struct {
	mutex sync.Mutex
	file  *os.File
	count atomic.Int64
}

type begin struct {
	Call   int64  `json:"call"`
	AtMS   int64  `json:"at_ms"`
	Method string `json:"method"`
	// ID is the name or handle of what the call is about.
	ID string `json:"id"`
	// Names are those that Kubernetes has for it, as namespace/name.
	Names []string `json:"names"`
}

type end struct {
	Call  int64  `json:"call"`
	AtMS  int64  `json:"at_ms"`
	Error string `json:"error"`
}

func openCalls(path string) (*calls, error) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	return &calls{file: file}, err
}

// record is an interceptor. What is asked all the time and changes nothing is left out.
func (c *calls) record(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	if method == "Probe" || strings.HasSuffix(method, "Capabilities") {
		return next(ctx, request)
	}
	number := c.count.Add(1)
	c.write(begin{number, time.Now().UnixMilli(), method, subject(request), namesIn(request)})
	response, err := next(ctx, request)
	finished := end{Call: number, AtMS: time.Now().UnixMilli()}
	if err != nil {
		finished.Error = err.Error()
	}
	c.write(finished)
	return response, err
}

// write ends the driver if it cannot: a test must not believe that nothing was asked.
func (c *calls) write(line any) {
	text, err := json.Marshal(line)
	if err == nil {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		_, err = c.file.Write(append(text, '\n'))
	}
	if err != nil {
		panic(err)
	}
}

func subject(request any) string {
	switch request := request.(type) {
	case interface{ GetName() string }:
		return request.GetName()
	case interface{ GetGroupSnapshotId() string }:
		return request.GetGroupSnapshotId()
	case interface{ GetSnapshotId() string }:
		return request.GetSnapshotId()
	case interface{ GetVolumeId() string }:
		return request.GetVolumeId()
	}
	return ""
}

// namesIn finds what the sidecars add with --extra-create-metadata.
func namesIn(request any) []string {
	names := []string{}
	with, ok := request.(interface{ GetParameters() map[string]string })
	if !ok {
		return names
	}
	for _, kind := range []string{"pvc", "volumesnapshot", "volumegroupsnapshot"} {
		prefix := "csi.storage.k8s.io/" + kind
		if name := with.GetParameters()[prefix+"/name"]; name != "" {
			names = append(names, with.GetParameters()[prefix+"/namespace"]+"/"+name)
		}
	}
	return names
}
