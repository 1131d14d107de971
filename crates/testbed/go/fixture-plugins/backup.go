package main

import (
	"github.com/sirupsen/logrus"
	api "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/plugin/velero"
	"k8s.io/apimachinery/pkg/runtime"
)

// backupActionV1 and backupActionV2 are two types, because their Execute methods differ in what
// they return.
type backupActionV1 struct{ action }

type backupActionV2 struct{ action }

func backupV1(name string, to velero.ResourceSelector) func(logrus.FieldLogger) *backupActionV1 {
	return func(log logrus.FieldLogger) *backupActionV1 {
		return &backupActionV1{action{name, to, log}}
	}
}

func backupV2(name string, to velero.ResourceSelector) func(logrus.FieldLogger) *backupActionV2 {
	return func(log logrus.FieldLogger) *backupActionV2 {
		return &backupActionV2{action{name, to, log}}
	}
}

func (a *backupActionV1) Execute(item runtime.Unstructured, _ *api.Backup) (runtime.Unstructured, []velero.ResourceIdentifier, error) {
	o, err := a.obey(item)
	if err != nil {
		return nil, nil, err
	}
	additional, err := others(item, "additional")
	if err != nil {
		return nil, nil, err
	}
	return item, additional, a.mark(item, o)
}

func (a *backupActionV2) Execute(item runtime.Unstructured, _ *api.Backup) (runtime.Unstructured, []velero.ResourceIdentifier, string, []velero.ResourceIdentifier, error) {
	o, err := a.obey(item)
	if err != nil {
		return nil, nil, "", nil, err
	}
	additional, err := others(item, "additional")
	if err != nil {
		return nil, nil, "", nil, err
	}
	after, err := others(item, "post-operation")
	if err != nil {
		return nil, nil, "", nil, err
	}
	return item, additional, o.operationID(), after, a.mark(item, o)
}

func (a *backupActionV2) Progress(operationID string, _ *api.Backup) (velero.OperationProgress, error) {
	return progressOf(operationID)
}

func (a *backupActionV2) Cancel(operationID string, _ *api.Backup) error {
	return cancel(operationID)
}
