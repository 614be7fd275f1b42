"""The jars of one Apache Kafka broker for each supported version, locked by checksum.

`<version>.lock` names every jar (`group:artifact:version  sha256`), in the order of the class
path. Maven and Ivy are each given exactly these, none with dependencies of its own, so both fetch
the same files and neither decides anything. `maven.xml`, `ivy.xml` and `ivysettings.xml` are what
they need; the marked line in the first two is replaced by the jars.

How a lock is made (for another version: the same with its number), by any Maven project with these
dependencies, then `dependency:list` and `dependency:copy-dependencies` with
`-DincludeScope=runtime`, one line a jar, sorted:

    org.apache.kafka:kafka_2.13:VERSION     the broker
    org.apache.kafka:kafka-tools:VERSION    without its dependencies; the console producer and
                                            the like (4.3 only: 4.4.0 was never published)
    org.slf4j:slf4j-simple:1.7.36           the binding for the slf4j-api that Kafka brings

4.4.0 resolves only with an exclusion of `org.apache.kafka:kafka-tools-api`, which it names but
which was never published for it; the broker does not need it.
"""
