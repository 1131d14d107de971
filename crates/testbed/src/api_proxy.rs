//! Makes the API server reachable for programs without TLS, as `kubectl proxy` does.

use http::Request;
use kube::Client;
use kube::client::Body;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Starts a proxy that ends with the runtime. Returns its address.
///
/// # Errors
/// No port can be opened.
pub async fn start(client: Client) -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let client = client.clone();
            tokio::spawn(async move {
                // A client that closes the connection does not want an answer.
                let _ = proxy_connection(stream, client).await;
            });
        }
    });
    Ok(url)
}

/// Forwards one request and returns its answer.
async fn proxy_connection(stream: TcpStream, client: Client) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let mut parts = line.split(' ').map(str::to_owned);
    let (method, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let (mut length, mut content) = (0, String::new());
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).await?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap_or_default(),
            "content-type" => value.clone_into(&mut content),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let request = Request::builder().method(method.as_str()).uri(path);
    let request = request.header("Content-Type", content).body(Body::from(body));
    let request = request.map_err(std::io::Error::other)?;
    let response = client.send(request).await.map_err(std::io::Error::other)?;
    let status = response.status();
    let body = response.into_body().collect_bytes().await.map_err(std::io::Error::other)?;
    let head = format!(
        "HTTP/1.0 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    stream.shutdown().await
}
