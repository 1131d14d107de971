package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	api "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/plugin/velero"
)

type restoreActionV1 struct{ action }

// restoreActionV2 adds what v2 has beyond Execute.
type restoreActionV2 struct {
	restoreActionV1
	asking sync.Mutex
}

func restoreV1(name string, to velero.ResourceSelector) func(logrus.FieldLogger) *restoreActionV1 {
	return func(log logrus.FieldLogger) *restoreActionV1 {
		return &restoreActionV1{action{name, to, log}}
	}
}

func restoreV2(name string, to velero.ResourceSelector) func(logrus.FieldLogger) *restoreActionV2 {
	return func(log logrus.FieldLogger) *restoreActionV2 {
		return &restoreActionV2{restoreActionV1: restoreActionV1{action{name, to, log}}}
	}
}

// Execute serves both versions: the v1 service drops the fields that it does not know.
func (a *restoreActionV1) Execute(input *velero.RestoreItemActionExecuteInput) (*velero.RestoreItemActionExecuteOutput, error) {
	o, err := a.obey(input.Item)
	if err != nil {
		return nil, err
	}
	additional, err := others(input.Item, "additional")
	if err != nil {
		return nil, err
	}
	if err := a.mark(input.Item, o); err != nil {
		return nil, err
	}
	return &velero.RestoreItemActionExecuteOutput{
		UpdatedItem:                 input.Item,
		AdditionalItems:             additional,
		SkipRestore:                 o.skip,
		OperationID:                 o.operationID(),
		WaitForAdditionalItems:      o.wait,
		AdditionalItemsReadyTimeout: o.timeout,
	}, nil
}

func (a *restoreActionV2) Progress(operationID string, _ *api.Restore) (velero.OperationProgress, error) {
	return progressOf(operationID)
}

func (a *restoreActionV2) Cancel(operationID string, _ *api.Restore) error {
	return cancel(operationID)
}

func (a *restoreActionV2) AreAdditionalItemsReady(_ []velero.ResourceIdentifier, restore *api.Restore) (bool, error) {
	after, given := restore.Annotations[domain+"ready-after-ms"]
	if !given {
		return true, nil
	}
	if after == "never" {
		return false, nil
	}
	wait, err := strconv.ParseUint(after, 10, 63)
	if err != nil {
		return false, fmt.Errorf("not a number of milliseconds: %q", after)
	}
	now := time.Now().UnixMilli()
	first, err := a.firstAsked(restore.Name, now)
	return now-first >= int64(wait), err
}

// firstAsked is when the first question for a Restore came, in Unix milliseconds. A file holds it,
// since the process may be another one at the next question.
func (a *restoreActionV2) firstAsked(restore string, now int64) (int64, error) {
	a.asking.Lock()
	defer a.asking.Unlock()
	path := filepath.Join(stateFolder(), "asked-"+restore)
	text, err := os.ReadFile(path)
	if err == nil {
		return strconv.ParseInt(string(text), 10, 64)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	if err := os.MkdirAll(stateFolder(), 0o777); err != nil {
		return 0, err
	}
	return now, os.WriteFile(path, []byte(strconv.FormatInt(now, 10)), 0o666)
}
