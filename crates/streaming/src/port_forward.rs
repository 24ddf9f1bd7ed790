//! Port-forward sessions: connections to ports of a pod, each with a data and an error stream.
//!
//! Three forms exist on the wire and become one here: SPDY streams in pairs (`portforward.k8s.io`), the same
//! SPDY tunnelled in a websocket's binary messages, and the older websocket with two channels per port.

use std::collections::HashMap;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::channels::{ChannelWriter, Encoding};
use crate::upgrade::Wire;
use crate::websocket::{self, Message, Role};
use crate::{BoxRead, BoxWrite, Driver, spdy};

/// What SPDY clients ask for.
pub const SPDY_PROTOCOLS: &[&str] = &["portforward.k8s.io", ""];
/// What websocket clients ask for.
pub const WEBSOCKET_PROTOCOLS: &[&str] =
    &["SPDY/3.1+portforward.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io", ""];

const QUEUE: usize = 8;

/// One connection that the client wants to a port of the pod.
pub struct Connection {
    /// The port.
    pub port: u16,
    /// What the client sends.
    pub reader: BoxRead,
    /// What goes to the client.
    pub writer: BoxWrite,
    /// One sentence when it fails; closed without one when all is well.
    pub error: BoxWrite,
}

/// The connections that a client asks for; ends with the session. `ports` are those of the query, which only
/// the older websocket form has. The driver must be polled until it ends.
pub fn accept<T>(io: T, wire: Wire, protocol: &str, ports: &[u16]) -> (mpsc::Receiver<Connection>, Driver)
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    match wire {
        Wire::Spdy => over_spdy(io),
        Wire::WebSocket if protocol.starts_with("SPDY/3.1+") => {
            let (bytes, tunnel) = websocket::byte_stream(io, Role::Server);
            let (connections, inner) = over_spdy(bytes);
            let driver = async move {
                tokio::join!(tunnel, inner);
            };
            (connections, Box::pin(driver))
        }
        Wire::WebSocket => over_channels(io, Encoding::of(protocol), ports),
    }
}

fn over_spdy<T>(io: T) -> (mpsc::Receiver<Connection>, Driver)
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (mut session, inner) = spdy::Session::new(io, true);
    let (found, connections) = mpsc::channel(QUEUE);
    let pair = async move {
        let mut halves: HashMap<String, spdy::Stream> = HashMap::new();
        while let Some(stream) = session.accept().await {
            // Dropping a stream without both headers ends it, which is the answer it deserves.
            let (Some(request), Some(port)) = (
                stream.header("requestID").map(str::to_owned),
                stream.header("port").and_then(|port| port.parse().ok()),
            ) else {
                continue;
            };
            let Some(other) = halves.remove(&request) else {
                halves.insert(request, stream);
                continue;
            };
            let (data, error) = match stream.header("streamType") {
                Some("data") => (stream, other),
                _ => (other, stream),
            };
            let (reader, writer) = tokio::io::split(data);
            let connection = Connection {
                port,
                reader: Box::pin(reader),
                writer: Box::pin(writer),
                error: Box::pin(error),
            };
            if found.send(connection).await.is_err() {
                return;
            }
        }
    };
    let driver = async move {
        tokio::join!(inner, pair);
    };
    (connections, Box::pin(driver))
}

fn over_channels<T>(io: T, encoding: Encoding, ports: &[u16]) -> (mpsc::Receiver<Connection>, Driver)
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (mut socket, inner) = websocket::split(io, Role::Server);
    let (found, connections) = mpsc::channel(ports.len().max(1));
    let mut inputs = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let (data, error) = ((index * 2) as u8, (index * 2 + 1) as u8);
        for channel in [data, error] {
            // Room for every greeting is not guaranteed; the few ports of a real request fit the queue.
            let _ = socket.outgoing.try_send(encoding.message(channel, &port.to_le_bytes()));
        }
        let (ours, theirs) = tokio::io::duplex(16 * 1024);
        inputs.push(Some(theirs));
        let connection = Connection {
            port: *port,
            reader: Box::pin(ours),
            writer: Box::pin(ChannelWriter::new(data, encoding, socket.outgoing.clone())),
            error: Box::pin(ChannelWriter::new(error, encoding, socket.outgoing.clone())),
        };
        // The queue was made with room for every port.
        let _ = found.try_send(connection);
    }
    drop(socket.outgoing);
    let demultiplex = async move {
        while let Some(message) = socket.incoming.recv().await {
            if let Message::Close(_) = message {
                return;
            }
            let Some((channel, payload)) = encoding.parse(&message) else { continue };
            if channel % 2 == 0
                && let Some(input) = inputs.get_mut(usize::from(channel / 2))
                && let Some(pipe) = input
                && pipe.write_all(&payload).await.is_err()
            {
                *input = None;
            }
        }
    };
    let driver = async move {
        tokio::join!(inner, demultiplex);
    };
    (connections, Box::pin(driver))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    async fn echo(mut connections: mpsc::Receiver<Connection>) {
        while let Some(mut connection) = connections.recv().await {
            let mut input = Vec::new();
            connection.reader.read_to_end(&mut input).await.unwrap();
            connection.writer.write_all(format!("{}:", connection.port).as_bytes()).await.unwrap();
            connection.writer.write_all(&input).await.unwrap();
            connection.writer.shutdown().await.unwrap();
            connection.error.shutdown().await.unwrap();
        }
    }

    async fn ask(session: spdy::Session) {
        for request in ["0", "1"] {
            let headers = |kind: &str| {
                [("streamType", kind), ("port", "8080"), ("requestID", request)]
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .to_vec()
            };
            let mut error = session.open(headers("error")).await.unwrap();
            error.shutdown().await.unwrap();
            let mut data = session.open(headers("data")).await.unwrap();
            data.write_all(b"hi").await.unwrap();
            data.shutdown().await.unwrap();
            let mut answer = String::new();
            data.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer, "8080:hi");
            answer.clear();
            error.read_to_string(&mut answer).await.unwrap();
            assert!(answer.is_empty());
        }
    }

    #[tokio::test]
    async fn spdy_pairs_become_connections() {
        let (client, server) = tokio::io::duplex(1024);
        let (connections, driver) = accept(server, Wire::Spdy, "portforward.k8s.io", &[]);
        let (session, client_driver) = spdy::Session::new(client, false);
        tokio::join!(echo(connections), driver, ask(session), client_driver);
    }

    #[tokio::test]
    async fn spdy_in_a_websocket_is_the_same() {
        let (client, server) = tokio::io::duplex(1024);
        let (connections, driver) = accept(server, Wire::WebSocket, "SPDY/3.1+portforward.k8s.io", &[]);
        let (bytes, tunnel) = websocket::byte_stream(client, Role::Client);
        let (session, client_driver) = spdy::Session::new(bytes, false);
        tokio::join!(echo(connections), driver, ask(session), client_driver, tunnel);
    }

    #[tokio::test]
    async fn each_port_of_the_query_has_two_channels() {
        let (client, server) = tokio::io::duplex(1024);
        let (mut connections, driver) = accept(server, Wire::WebSocket, "v4.channel.k8s.io", &[80, 443]);
        let (mut socket, client_driver) = websocket::split(client, Role::Client);
        let serve = async move {
            let _first = connections.recv().await.unwrap();
            let mut second = connections.recv().await.unwrap();
            assert_eq!(second.port, 443);
            let mut input = [0; 2];
            second.reader.read_exact(&mut input).await.unwrap();
            second.writer.write_all(&input).await.unwrap();
        };
        let talk = async move {
            let mut greetings = Vec::new();
            for _ in 0..4 {
                let Some(Message::Binary(data)) = socket.incoming.recv().await else { panic!("closed") };
                greetings.push(data.to_vec());
            }
            assert_eq!(greetings[2], [2, 187, 1]);
            socket.outgoing.send(Message::Binary("\x02ok".into())).await.unwrap();
            assert_eq!(socket.incoming.recv().await, Some(Message::Binary("\x02ok".into())));
        };
        tokio::join!(serve, talk, driver, client_driver);
    }
}
