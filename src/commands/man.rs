//! `servetwin man`: the manual pages.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Command, CommandFactory as _};
use clap_mangen::Man;

use crate::commands::Cli;
use crate::exit_code;
use crate::output::{self, FileSet};

/// Write the manual pages, one for each command.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  servetwin man ~/.local/share/man/man1 && man servetwin-run")]
pub struct Args {
    /// Folder to write them into; made if it is not there.
    dir: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<u8> {
    let dir = &args.dir;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    collect(root, &mut pages);
    let mut files = FileSet::new();
    for page in &pages {
        files.write(&dir.join(page.get_filename()), |out| page.render(out))?;
    }
    files.commit()?;
    output::print(&format!("{} pages in {}\n", pages.len(), dir.display()))?;
    Ok(exit_code::OK)
}

/// The page of `command` and those of its subcommands.
fn collect(command: Command, pages: &mut Vec<Man>) {
    let visible = command.get_subcommands().filter(|c| !c.is_hide_set());
    let inner: Vec<Command> = visible.cloned().collect();
    // A page is called as its command is, without spaces; the root's is the program's.
    pages.push(Man::new(command));
    for command in inner {
        collect(command, pages);
    }
}
