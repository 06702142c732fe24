//! Being told to end.

use std::future::Future;

use tokio::signal::unix::{SignalKind, signal};

/// Futures for the first and for the second SIGTERM or SIGINT.
///
/// # Errors
/// When the system does not let them be listened for.
pub fn signals() -> std::io::Result<(impl Future<Output = ()>, impl Future<Output = ()>)> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let (sender, mut first) = tokio::sync::watch::channel(0);
    let mut second = first.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            sender.send_modify(|n| *n += 1);
        }
    });
    Ok((
        async move {
            let _ = first.wait_for(|n| *n >= 1).await;
        },
        async move {
            let _ = second.wait_for(|n| *n >= 2).await;
        },
    ))
}
