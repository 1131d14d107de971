package main

import (
	"fmt"
	"os"
	"path/filepath"

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
	if err := os.MkdirAll(stateFolder(), 0o777); err != nil {
		return err
	}
	// Lines that are appended whole do not mix, whoever else appends.
	file, err := os.OpenFile(filepath.Join(stateFolder(), "deleted"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = fmt.Fprintf(file, "%s/%s/%s\n", kind, object.GetNamespace(), object.GetName())
	return err
}
