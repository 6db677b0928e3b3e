package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// fenced finds the code blocks of a Markdown page.
var fenced = regexp.MustCompile("(?ms)^ *```[a-z]*\n(.*?)^ *```")

// word is a word of a command, with what is quoted in it.
var word = regexp.MustCompile(`(?:"[^"]*"|'[^']*'|[^\s"'])+`)

// Who follows a page of the documentation copies its commands. Each must be one that the program has, with the flags that it has.
func TestEveryCommandInTheDocumentationIsOneOfTheProgram(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range fenced.FindAllStringSubmatch(string(text), -1) {
			for _, line := range strings.Split(strings.ReplaceAll(block[1], "\\\n", " "), "\n") {
				if command, is := commandOf(line); is {
					checked++
					if err := accepts(command); err != nil {
						t.Errorf("%s: %s: %v", filepath.Base(page), line, err)
					}
				}
			}
		}
	}
	if checked < 20 {
		t.Errorf("found %d commands, so this test looks at the wrong places", checked)
	}
}

// commandOf gives the arguments of a line that calls the program.
func commandOf(line string) ([]string, bool) {
	line, _, _ = strings.Cut(line, " #")
	words := word.FindAllString(strings.TrimPrefix(strings.TrimSpace(line), "$ "), -1)
	for i := range words {
		words[i] = strings.NewReplacer(`"`, "", `'`, "").Replace(words[i])
	}
	switch {
	case len(words) > 0 && words[0] == programName:
		return words[1:], true
	case len(words) > 1 && words[0] == "kubectl" && words[1] == programName:
		return words[2:], true
	}
	return nil, false
}

// accepts says what is wrong with a command, without running it.
func accepts(arguments []string) error {
	p := &Program{}
	p.fillDefaults()
	command, rest, err := p.command().Find(arguments)
	if err != nil {
		return err
	}
	if err := command.ParseFlags(rest); err != nil {
		return err
	}
	if err := command.ValidateArgs(command.Flags().Args()); err != nil {
		return err
	}
	return command.ValidateRequiredFlags()
}

// relative finds the links of a page that lead to a file of the project.
var relative = regexp.MustCompile(`\]\(([A-Za-z0-9_./-]+)(?:#[a-z-]+)?\)`)

func TestLinksInTheDocumentationLeadToFilesOfTheProject(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range relative.FindAllStringSubmatch(string(text), -1) {
			checked++
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), link[1])); err != nil {
				t.Errorf("%s links to %s: %v", filepath.Base(page), link[1], err)
			}
		}
	}
	if checked < 20 {
		t.Errorf("found %d links, so this test looks at the wrong places", checked)
	}
}
