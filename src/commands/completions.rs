//! `servetwin completions`: what a shell needs to complete the command line.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::commands::Cli;
use crate::exit_code;
use crate::output::print;

/// Print the completions of a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  servetwin completions bash > ~/.local/share/bash-completion/completions/servetwin
  servetwin completions zsh > ~/.zfunc/_servetwin                                      # with fpath+=~/.zfunc before compinit
  servetwin completions fish > ~/.config/fish/completions/servetwin.fish")]
pub struct Args {
    /// The shell.
    shell: Shell,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<u8> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "servetwin", &mut text);
    print(&String::from_utf8(text)?)?;
    Ok(exit_code::OK)
}
