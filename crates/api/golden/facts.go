package main

import (
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vmware-tanzu/velero/pkg/label"
	"sigs.k8s.io/yaml"
)

type duration struct {
	Nanoseconds int64  `json:"nanoseconds"`
	Text        string `json:"text"`
}

// durations lists what Go prints, what it reads, and what it refuses to read.
func durations() any {
	lengths := []time.Duration{
		0, 1, 999, 1000, 1001, 1500, 999_999, 1_000_000, 1_100_000, 999_999_999,
		time.Second, 1500 * time.Millisecond, time.Minute - 1, time.Minute, 90 * time.Second,
		time.Hour, 4 * time.Hour, 720 * time.Hour, time.Hour + time.Nanosecond, -1, -time.Minute,
		-90 * time.Minute, -1500 * time.Microsecond, math.MaxInt64, math.MinInt64, math.MinInt64 + 1,
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		lengths = append(lengths, time.Duration(random.Int64()>>random.IntN(62)))
	}
	var printed []duration
	for _, length := range lengths {
		printed = append(printed, duration{int64(length), length.String()})
	}

	candidates := []string{
		"0", "+0", "-0", "0s", "5s", "+5s", "-5s", "1.5h", ".5s", "5.s", "-.5s", "1h1m1s1ms1us1ns",
		"1s1h", "3h3h", "1us", "1µs", "1μs", "0.000000001s", "0.0000000001s", "0.9999999999999999999s",
		"0.3333333333333333333h", "1.0000000000000000000000001m", "9223372036854775807ns",
		"9223372036.854775807s", "-9223372036854775808ns", "-2562047h47m16.854775808s",
		"2562047h47m16.854775807s", "100000000000000000000ns", "9223372036854775808ns",
		"-9223372036854775809ns", "2562047h47m16.854775808s", "9223372036854775807h", "3000000h",
		"", "s", "1", "-", "+", ".", ".s", "-.s", "1x", "1d", "1 s", " 1s", "1s ", "1S", "1,5s",
		"--1s", "+-1s", "1s-1s", "1e3s", "0x1s", "1..5s", "infs", "1hs", "1s1", "00", "1h 1m", "∞s",
	}
	var read []duration
	var refused []string
	for _, text := range candidates {
		if length, err := time.ParseDuration(text); err != nil {
			refused = append(refused, text)
		} else {
			read = append(read, duration{int64(length), text})
		}
	}
	return map[string]any{"printed": printed, "read": read, "refused": refused}
}

// labels pairs names with the label values that Velero makes of them.
func labels() any {
	var pairs []map[string]string
	for _, length := range []int{0, 1, 56, 57, 58, 62, 63, 64, 65, 100, 253} {
		for _, pattern := range []string{"a", "backup-2026.", "x1-"} {
			input := strings.Repeat(pattern, 253)[:length]
			pairs = append(pairs, map[string]string{"input": input, "output": label.GetValidName(input)})
		}
	}
	return pairs
}

// crds reduces Velero's generated CRDs to what a compatible one must agree on.
func crds() any {
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/vmware-tanzu/velero").Output()
	check(err)
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(module)), "config/crd/*/bases/*.yaml"))
	check(err)
	facts := map[string]any{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		check(err)
		var crd struct {
			Spec struct {
				Group    string
				Names    map[string]any
				Scope    string
				Versions []struct {
					Name, Served, Storage    any
					AdditionalPrinterColumns []map[string]any
					Subresources             map[string]any
					Schema                   struct{ OpenAPIV3Schema map[string]any }
				}
			}
		}
		check(yaml.Unmarshal(text, &crd))
		versions := map[string]any{}
		for _, version := range crd.Spec.Versions {
			paths := map[string]any{}
			walk(version.Schema.OpenAPIV3Schema, "", false, paths)
			for _, column := range version.AdditionalPrinterColumns {
				delete(column, "description")
			}
			versions[version.Name.(string)] = map[string]any{
				"served": version.Served, "storage": version.Storage, "paths": paths,
				"columns": version.AdditionalPrinterColumns, "subresources": version.Subresources,
			}
		}
		facts[crd.Spec.Names["kind"].(string)] = map[string]any{
			"group": crd.Spec.Group, "names": crd.Spec.Names, "scope": crd.Spec.Scope, "versions": versions,
		}
	}
	return facts
}

// walk records every schema node under its path; `[]` is an array's item, `{}` a map's value.
func walk(schema map[string]any, path string, required bool, into map[string]any) {
	node := map[string]any{}
	for key, value := range schema {
		if !slices.Contains([]string{"description", "properties", "items", "additionalProperties", "required"}, key) {
			node[key] = value
		}
	}
	if required {
		node["required"] = true
	}
	if path != "" {
		into[path] = node
	}
	names, _ := schema["required"].([]any)
	properties, _ := schema["properties"].(map[string]any)
	for name, property := range properties {
		inner := strings.TrimPrefix(path+"."+name, ".")
		walk(property.(map[string]any), inner, slices.Contains(names, any(name)), into)
	}
	if items, ok := schema["items"].(map[string]any); ok {
		walk(items, path+"[]", false, into)
	}
	if values, ok := schema["additionalProperties"].(map[string]any); ok {
		walk(values, path+"{}", false, into)
	}
}
