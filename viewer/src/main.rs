//! The viewer as a program with a window, or as a page.

#[cfg(target_arch = "wasm32")]
mod web;
#[cfg(not(target_arch = "wasm32"))]
mod window;

#[cfg(not(target_arch = "wasm32"))]
fn main() -> std::process::ExitCode {
    window::main()
}

/// The page and its workers call what they need.
#[cfg(target_arch = "wasm32")]
fn main() {}
