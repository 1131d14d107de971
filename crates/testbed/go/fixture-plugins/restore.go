package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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

// AreAdditionalItemsReady does as the Restore says, and leaves a line for every question that it says
// something of.
func (a *restoreActionV2) AreAdditionalItemsReady(items []velero.ResourceIdentifier, restore *api.Restore) (bool, error) {
	about, order := orderFor(items, restore.Annotations[domain+"ready-after-ms"])
	if order == "" {
		return true, nil
	}
	now := time.Now().UnixMilli()
	answer := order
	switch order {
	case "die", "hang", "error":
	case "never":
		answer = "no"
	default:
		wait, err := strconv.ParseUint(order, 10, 63)
		if err != nil {
			return false, fmt.Errorf("not a number of milliseconds: %q", order)
		}
		first, err := a.firstAsked(restore.Name+about, now)
		if err != nil {
			return false, err
		}
		answer = "no"
		if now-first >= int64(wait) {
			answer = "yes"
		}
	}
	var asked []string
	for _, item := range items {
		asked = append(asked, fmt.Sprintf("%s/%s/%s", item.GroupResource, item.Namespace, item.Name))
	}
	line := fmt.Sprintf("%d %s %s %s", now, restore.Name, answer, strings.Join(asked, ","))
	if err := note("questions", line); err != nil {
		return false, err
	}
	switch answer {
	case "die":
		os.Exit(3)
	case "hang":
		hang()
	case "error":
		return false, errors.New("fixture cannot say")
	}
	return answer == "yes", nil
}

// orderFor is what a Restore says of a question: of one of the items in it, else of all. Beside it
// stands a name for the former, so that each has a time of its first question.
func orderFor(items []velero.ResourceIdentifier, orders string) (string, string) {
	forAll := ""
	for _, text := range list(orders) {
		name, order, isOfOne := strings.Cut(text, "=")
		if !isOfOne {
			forAll = text
			continue
		}
		for _, item := range items {
			if item.Name == name {
				return "-" + name, order
			}
		}
	}
	return "", forAll
}

// firstAsked is when the first question for a Restore, or for one item in it, came, in Unix
// milliseconds. A file holds it, since the process may be another one at the next question.
func (a *restoreActionV2) firstAsked(about string, now int64) (int64, error) {
	a.asking.Lock()
	defer a.asking.Unlock()
	path := filepath.Join(stateFolder(), "asked-"+about)
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
