package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

// installCommand copies the program itself, for a pod whose container of the user's own needs it: the operator's image has no shell and no
// cp (docs/design.md section 7).
func (p *Program) installCommand() *cobra.Command {
	return &cobra.Command{
		Use: "install-cli FOLDER", Hidden: true, Args: cobra.ExactArgs(1),
		Short: "Copy this program into a folder, for another container of the same pod",
		RunE: func(_ *cobra.Command, args []string) error {
			own, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			return copyProgram(own, filepath.Join(args[0], "syncbarrier"))
		},
	}
}

// copyProgram makes the copy under another name first, so that nobody runs half of it.
func copyProgram(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("read this program: %w", err)
	}
	defer source.Close()
	target, err := os.CreateTemp(filepath.Dir(to), ".syncbarrier-*")
	if err != nil {
		return fmt.Errorf("write the copy: %w", err)
	}
	defer os.Remove(target.Name())
	if _, err := io.Copy(target, source); err != nil {
		target.Close()
		return fmt.Errorf("write the copy: %w", err)
	}
	if err := target.Close(); err != nil {
		return fmt.Errorf("write the copy: %w", err)
	}
	if err := os.Chmod(target.Name(), 0o755); err != nil {
		return fmt.Errorf("make the copy a program: %w", err)
	}
	if err := os.Rename(target.Name(), to); err != nil {
		return fmt.Errorf("put the copy in its place: %w", err)
	}
	return nil
}
