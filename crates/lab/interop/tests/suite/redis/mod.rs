//! The redis client against a small server, on a bad network. A client that connects again when its
//! connection breaks counts every increment at least once.

mod server;

use std::time::Duration;

use pagewire_simulation::net::TcpStream;
use pagewire_simulation::{Control, Link, Result, Sim};
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, AsyncConnectionConfig, RedisConnectionInfo};

/// The redis client over our stream: it takes any `AsyncRead + AsyncWrite`.
async fn connect() -> Result<MultiplexedConnection> {
    let stream = TcpStream::connect("server:6379").await?;
    let info = RedisConnectionInfo::default();
    let config = AsyncConnectionConfig::default();
    let (connection, driver) =
        MultiplexedConnection::new_with_config(&info, stream, config).await?;
    tokio::spawn(driver);
    Ok(connection)
}

#[test]
fn values_are_set_and_got_over_a_network_that_loses_packets() {
    for seed in 0..5 {
        let link = Link::new().latency(Duration::from_millis(10)).loss(0.05);
        let mut sim = Sim::builder().seed(seed).link(link).build();
        sim.host("server", server::run);
        sim.client("client", async {
            let mut redis = connect().await?;
            let text: String = "x".repeat(50_000);
            let _: () = redis.set("long", &text).await?;
            assert_eq!(redis.get::<_, String>("long").await?, text);
            assert_eq!(redis.get::<_, Option<String>>("none").await?, None);
            // Commands in one pipeline are answered in their order.
            let mut pipe = redis::pipe();
            (0..100).for_each(|_| _ = pipe.incr("count", 1));
            let counts: Vec<u64> = pipe.query_async(&mut redis).await?;
            assert_eq!(counts, (1..=100).collect::<Vec<_>>());
            Ok(())
        });
        sim.run().unwrap();
    }
}

#[test]
fn a_client_that_connects_again_outlives_partitions_and_restarts() {
    let mut sim = Sim::builder().build();
    sim.host("server", server::run);
    sim.client("client", async {
        let (mut done, mut redis) = (0, None);
        while done < 100 {
            let mut connection: MultiplexedConnection = match redis.take() {
                Some(connection) => connection,
                None => match tokio::time::timeout(Duration::from_secs(1), connect()).await {
                    Ok(Ok(connection)) => connection,
                    _ => continue,
                },
            };
            let incr = connection.incr::<_, _, u64>("count", 1);
            match tokio::time::timeout(Duration::from_secs(1), incr).await {
                Ok(Ok(_)) => {
                    done += 1;
                    redis = Some(connection);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                // Whether it was counted is unknown.
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
        Ok(())
    });
    let second = Duration::from_secs;
    sim.at(second(1), |control: &Control| control.partition("client", "server"));
    sim.at(second(3), |control: &Control| control.repair("client", "server"));
    sim.at(second(4), |control: &Control| control.crash("server"));
    sim.at(second(5), |control: &Control| control.bounce("server"));
    sim.at(second(6), |control: &Control| control.kill("server"));
    sim.at(second(7), |control: &Control| control.bounce("server"));
    sim.run().unwrap();
}
