package main

import (
	"github.com/sirupsen/logrus"
	api "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/plugin/velero"
	"k8s.io/apimachinery/pkg/runtime"
)

type blockAction struct{ action }

func newBlockAction(log logrus.FieldLogger) *blockAction {
	return &blockAction{action{"iba", pods, log}}
}

// GetRelatedItems cannot return the item, so it does not mark it.
func (a *blockAction) GetRelatedItems(item runtime.Unstructured, _ *api.Backup) ([]velero.ResourceIdentifier, error) {
	if _, err := a.obey(item); err != nil {
		return nil, err
	}
	return others(item, "additional")
}
