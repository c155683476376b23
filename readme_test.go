package baton

// What the README says of the code is kept true here.

import (
	"fmt"
	"go/parser"
	gotoken "go/token"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var rooms = []string{"tickdeadline.go", "resp3.go", "backlog.go", "conn.go", "pin.go", "handoff.go", "bridge.go"}

func readme(t *testing.T) string {
	t.Helper()
	return source(t, "README.md")
}

func source(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestReadmeLineCounts(t *testing.T) {
	table := readme(t)
	sum := 0
	for _, room := range rooms {
		lines := strings.Count(source(t, room), "\n")
		sum += lines
		if !regexp.MustCompile(fmt.Sprintf(`(?m)^\| %s \|.*\| %d \|$`, regexp.QuoteMeta(room), lines)).MatchString(table) {
			t.Errorf("%s has %d lines; the README says otherwise", room, lines)
		}
	}
	if !strings.Contains(table, fmt.Sprintf("| together | | %d |", sum)) {
		t.Errorf("the seven files have %d lines; the README says otherwise", sum)
	}
	// 3,500 is the most that an auditor should have to read. Until the files are that short again they may at least not grow.
	if sum > 4845 {
		t.Errorf("%d lines are too many for an auditor, and more than there were", sum)
	}
}

func TestReadmePhaseTable(t *testing.T) {
	_, table, _ := strings.Cut(readme(t), "<!-- phases -->\n```\n")
	table, _, ok := strings.Cut(table, "```\n")
	var want strings.Builder
	for line := range strings.Lines(table) {
		want.WriteString(strings.TrimRight("//\t"+line, "\n") + "\n")
	}
	if !ok || !strings.Contains(source(t, "handoff.go"), want.String()+"type handoff struct {") {
		t.Error("the phase table is not the comment of the type handoff")
	}
}

func TestReadmeNamesTestsThatExist(t *testing.T) {
	var tests strings.Builder
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), "_test.go") {
			tests.WriteString(source(t, e.Name()))
		}
	}
	named := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(readme(t), -1)
	if len(named) < 9 {
		t.Fatalf("the README names %d tests, the contract alone has 9 lines", len(named))
	}
	for _, m := range named {
		if !strings.Contains(tests.String(), "func "+m[1]+"(") {
			t.Errorf("the README names %s, which there is not", m[1])
		}
	}
}

func TestReadmeExampleIsRun(t *testing.T) {
	_, code, _ := strings.Cut(readme(t), "```go\n")
	code, _, ok := strings.Cut(code, "```\n")
	var want strings.Builder
	for line := range strings.Lines(code) {
		if line != "\n" {
			want.WriteByte('\t')
		}
		want.WriteString(line)
	}
	if !ok || !strings.Contains(source(t, "example_test.go"), want.String()) {
		t.Error("the README's example is not the one in example_test.go")
	}
}

func TestReadmeListsEveryOption(t *testing.T) {
	table := readme(t)
	fields := func(kind, prefix string) {
		_, body, _ := strings.Cut(source(t, "conn.go"), "type "+kind+" struct {\n")
		body, _, _ = strings.Cut(body, "\n}\n")
		for _, m := range regexp.MustCompile(`(?m)^\t([A-Z]\w*(?:, [A-Z]\w*)*)\s`).FindAllStringSubmatch(body, -1) {
			for _, name := range strings.Split(m[1], ", ") {
				if !strings.Contains(table, "`"+prefix+name+"`") && name != "Maintenance" {
					t.Errorf("the README's table of options lacks %s%s", prefix, name)
				}
			}
		}
	}
	fields("Options", "")
	fields("Maintenance", "Maintenance.")
}

func TestReadmeListsEveryEvent(t *testing.T) {
	table := readme(t)
	kinds := regexp.MustCompile(`EventKind = "([^"]+)"`).FindAllStringSubmatch(source(t, "conn.go"), -1)
	if len(kinds) < 14 {
		t.Fatalf("%d kinds of events", len(kinds))
	}
	row := map[slog.Level]string{slog.LevelInfo: "info", slog.LevelDebug: "debug", slog.LevelWarn: "warning"}
	for _, kind := range kinds {
		level := row[EventKind(kind[1]).level()]
		if !regexp.MustCompile("(?m)^\\| " + level + " \\|.*`" + kind[1] + "`").MatchString(table) {
			t.Errorf("the README does not list %q as %s", kind[1], level)
		}
	}
}

// The seven files can be copied under any import path, and a file names only what stands in earlier ones.
func TestTheSevenFilesStandAlone(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := e.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && !slices.Contains(rooms, name) {
			t.Errorf("%s is a source file beside the seven", name)
		}
	}
	for _, room := range rooms {
		file, err := parser.ParseFile(gotoken.NewFileSet(), room, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range file.Imports {
			first, _, _ := strings.Cut(strings.Trim(i.Path.Value, `"`), "/")
			if strings.Contains(first, ".") && !strings.Contains(i.Path.Value, `"golang.org/x/`) {
				t.Errorf("%s imports %s", room, i.Path.Value)
			}
		}
	}
}
