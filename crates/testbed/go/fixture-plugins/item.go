package main

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sirupsen/logrus"
	"github.com/vmware-tanzu/velero/pkg/plugin/velero"
	biav2 "github.com/vmware-tanzu/velero/pkg/plugin/velero/backupitemaction/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// action is what all item actions have in common.
type action struct {
	seenAs   string // what it adds to the annotation seen-by
	selector velero.ResourceSelector
	log      logrus.FieldLogger
}

func (a *action) Name() string { return a.seenAs }

func (a *action) AppliesTo() (velero.ResourceSelector, error) { return a.selector, nil }

// levels leaves out logrus's fatal and panic, which do more than log.
var levels = map[string]logrus.Level{
	"trace": logrus.TraceLevel,
	"debug": logrus.DebugLevel,
	"info":  logrus.InfoLevel,
	"warn":  logrus.WarnLevel,
	"error": logrus.ErrorLevel,
}

// orders is what an item's verbs ask for beyond their immediate effect. Every action takes from it
// what its kind can return and leaves the rest.
type orders struct {
	ballast   *int
	operation *operation
	outcome   string
	verbs     []string // those that go for questions about the operation
	skip      bool
	wait      bool
	timeout   time.Duration
}

// operationID is empty, as the protocol has it, when no operation was asked for.
func (o *orders) operationID() string {
	if o.operation == nil {
		return ""
	}
	// Here, since these verbs may come after that of the operation.
	o.operation.outcome, o.operation.verbs = o.outcome, o.verbs
	return o.operation.id()
}

// obey does an item's verbs, in order.
func (a *action) obey(item runtime.Unstructured) (*orders, error) {
	object, err := meta.Accessor(item)
	if err != nil {
		return nil, err
	}
	o := &orders{}
	for _, verb := range list(object.GetAnnotations()[domain+"do"]) {
		name, value, _ := strings.Cut(verb, "=")
		number, notANumber := strconv.Atoi(value)
		switch name {
		case "sleep", "panic", "print", "grow", "operation", "wait", "progress-error", "progress-die":
			if notANumber != nil || number < 0 {
				return nil, fmt.Errorf("unknown verb %q", verb)
			}
		}
		milliseconds := time.Duration(number) * time.Millisecond
		switch name {
		case "die":
			os.Exit(3)
		case "hang":
			hang()
		case "sleep":
			time.Sleep(milliseconds)
		case "panic":
			panic("fixture panic " + strings.Repeat("x", number))
		case "error":
			// Without a stack, which an error of Velero's usual package would bring along.
			return nil, errors.New(value)
		case "print":
			text := lines(number)
			// Both are go-plugin's by now: this reaches the host over GRPCStdio.
			os.Stdout.Write(text)
			os.Stderr.Write(text)
		case "log":
			level, known := levels[value]
			if !known {
				return nil, fmt.Errorf("unknown verb %q", verb)
			}
			a.log.WithField("item", object.GetName()).Log(level, "fixture says hello")
		case "grow":
			o.ballast = &number
		case "operation":
			o.operation = &operation{start: time.Now().UnixMilli(), duration: int64(number)}
		case "outcome":
			o.outcome = value
		case "progress-error", "progress-die", "progress-unknown", "cancel-hang", "cancel-ignore":
			o.verbs = append(o.verbs, verb)
		case "skip":
			o.skip = true
		case "wait":
			o.wait, o.timeout = true, milliseconds
		default:
			return nil, fmt.Errorf("unknown verb %q", verb)
		}
	}
	return o, nil
}

// mark leaves the action's traces on an item that it returns.
func (a *action) mark(item runtime.Unstructured, o *orders) error {
	object, err := meta.Accessor(item)
	if err != nil {
		return err
	}
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	seen := append(list(annotations[domain+"seen-by"]), domain+a.seenAs)
	annotations[domain+"seen-by"] = strings.Join(seen, ",")
	if o.ballast != nil {
		annotations[domain+"ballast"] = strings.Repeat("x", *o.ballast)
	}
	object.SetAnnotations(annotations)
	return nil
}

// others are the items that an item's annotation names.
func others(item runtime.Unstructured, annotation string) ([]velero.ResourceIdentifier, error) {
	object, err := meta.Accessor(item)
	if err != nil {
		return nil, err
	}
	var found []velero.ResourceIdentifier
	for _, text := range list(object.GetAnnotations()[domain+annotation]) {
		parts := strings.Split(text, "/")
		if len(parts) != 3 {
			return nil, fmt.Errorf("not an item: %q", text)
		}
		found = append(found, velero.ResourceIdentifier{
			GroupResource: schema.ParseGroupResource(parts[0]),
			Namespace:     parts[1],
			Name:          parts[2],
		})
	}
	return found, nil
}

// list splits at commas; empty elements do not count.
func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

// lines makes n bytes of text, in lines of 80 bytes with their line feed. The last line may be
// shorter, but ends in a line feed too.
func lines(n int) []byte {
	text := bytes.Repeat([]byte("x"), n)
	for end := 80; end <= n; end += 80 {
		text[end-1] = '\n'
	}
	if n > 0 {
		text[n-1] = '\n'
	}
	return text
}

func hang() { select {} }

// operation is all there is to know about one; its id carries it, so that any process can tell
// how far it is.
type operation struct {
	start    int64 // Unix milliseconds
	duration int64 // milliseconds
	outcome  string
	verbs    []string
}

func (o *operation) id() string {
	id := fmt.Sprintf("op/%d/%d/%x", o.start, o.duration, o.outcome)
	if len(o.verbs) > 0 {
		id += "/" + strings.Join(o.verbs, "+")
	}
	return id
}

// has tells whether a verb without a number is among those of the operation.
func (o *operation) has(verb string) bool { return slices.Contains(o.verbs, verb) }

// number is that of a verb of the operation, or 0.
func (o *operation) number(verb string) int {
	for _, v := range o.verbs {
		if name, value, _ := strings.Cut(v, "="); name == verb {
			n, _ := strconv.Atoi(value)
			return n
		}
	}
	return 0
}

func parseOperation(id string) (*operation, bool) {
	parts := strings.Split(id, "/")
	if len(parts) < 4 || len(parts) > 5 || parts[0] != "op" {
		return nil, false
	}
	start, err1 := strconv.ParseUint(parts[1], 10, 63)
	duration, err2 := strconv.ParseUint(parts[2], 10, 63)
	outcome, err3 := hex.DecodeString(parts[3])
	if err1 != nil || err2 != nil || err3 != nil || !utf8.Valid(outcome) {
		return nil, false
	}
	var verbs []string
	if len(parts) == 5 {
		verbs = strings.FieldsFunc(parts[4], func(r rune) bool { return r == '+' })
	}
	return &operation{int64(start), int64(duration), string(outcome), verbs}, true
}

// progressOf is Progress of both v2 kinds.
func progressOf(id string) (velero.OperationProgress, error) {
	o, ok := parseOperation(id)
	if !ok {
		return velero.OperationProgress{}, biav2.InvalidOperationIDError(id)
	}
	now := time.Now()
	if len(o.verbs) > 0 {
		if err := misbehave(id, o, now); err != nil {
			return velero.OperationProgress{}, err
		}
	}
	gone := now.UnixMilli() - o.start
	progress := velero.OperationProgress{
		NCompleted:     min(max(gone, 0), o.duration),
		NTotal:         o.duration,
		OperationUnits: "Milliseconds",
		Description:    "fixture",
		Started:        time.UnixMilli(o.start),
		Updated:        now,
	}
	if gone >= o.duration {
		progress.Completed = true
		progress.Err = o.outcome
	}
	if _, err := os.Stat(cancelMark(id)); err == nil {
		progress.Completed = true
		progress.Err = "canceled"
	}
	return progress, nil
}

// misbehave answers a question as badly as the verbs say, by how many there were.
func misbehave(id string, o *operation, now time.Time) error {
	polls := fileOf("polls", id)
	if err := note(polls, strconv.FormatInt(now.UnixMilli(), 10)); err != nil {
		return err
	}
	if o.has("progress-unknown") {
		return biav2.InvalidOperationIDError(id)
	}
	text, err := os.ReadFile(filepath.Join(stateFolder(), polls))
	if err != nil {
		return err
	}
	count := bytes.Count(text, []byte("\n"))
	if count <= o.number("progress-die") {
		os.Exit(3)
	}
	if count <= o.number("progress-error") {
		return errors.New("fixture cannot tell")
	}
	return nil
}

// cancel is Cancel of both v2 kinds. It leaves a file, since the host asks for progress in
// processes to come.
func cancel(id string) error {
	o, ok := parseOperation(id)
	if !ok {
		return nil
	}
	if o.has("cancel-ignore") {
		return nil
	}
	if o.has("cancel-hang") {
		hang()
	}
	if err := os.MkdirAll(stateFolder(), 0o777); err != nil {
		return err
	}
	return os.WriteFile(cancelMark(id), nil, 0o666)
}

func cancelMark(id string) string {
	return filepath.Join(stateFolder(), fileOf("cancelled", id))
}

// fileOf is the name of a file about an operation.
func fileOf(what, id string) string {
	return what + "-" + strings.ReplaceAll(id, "/", "_")
}

// note appends a line to a file of the state folder. Lines that are appended whole do not mix, whoever
// else appends.
func note(name, line string) error {
	if err := os.MkdirAll(stateFolder(), 0o777); err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(stateFolder(), name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteString(line + "\n")
	return err
}

func stateFolder() string {
	if folder := os.Getenv("FIXTURE_STATE_DIR"); folder != "" {
		return folder
	}
	return os.TempDir()
}
