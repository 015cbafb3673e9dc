//! TCP: the server sends its reply line and echoes everything after it.

use std::{io, net::SocketAddr};

use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    task::spawn_local,
};

use crate::wire::Reply;

pub(super) fn bind(name: &str, address: SocketAddr) -> io::Result<()> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let pod = name.to_owned();
    spawn_local(async move {
        loop {
            // A connection that was reset before it was accepted does not affect the next one.
            if let Ok((stream, seen_source)) = listener.accept().await {
                let reply = Reply { pod: pod.clone(), seen_source, endpoint: address };
                spawn_local(serve(stream, reply));
            }
        }
    });
    Ok(())
}

/// Serves one connection. Its client notices errors.
async fn serve(mut stream: TcpStream, greeting: Reply) {
    let _ = stream.set_nodelay(true);
    if stream.write_all(format!("{greeting}\n").as_bytes()).await.is_ok() {
        let (mut reader, mut writer) = stream.split();
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
    }
}
