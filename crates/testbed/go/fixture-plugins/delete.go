package main

import (
	"fmt"

	"github.com/sirupsen/logrus"
	"github.com/vmware-tanzu/velero/pkg/plugin/velero"
	"k8s.io/apimachinery/pkg/api/meta"
)

type deleteAction struct{ action }

func newDeleteAction(log logrus.FieldLogger) *deleteAction {
	return &deleteAction{action{"dia", pods, log}}
}

// Execute returns nothing to the host, so what it has seen goes to a file.
func (a *deleteAction) Execute(input *velero.DeleteItemActionExecuteInput) error {
	if _, err := a.obey(input.Item); err != nil {
		return err
	}
	object, err := meta.Accessor(input.Item)
	if err != nil {
		return err
	}
	kind := input.Item.GetObjectKind().GroupVersionKind().Kind
	return note("deleted", fmt.Sprintf("%s/%s/%s", kind, object.GetNamespace(), object.GetName()))
}
