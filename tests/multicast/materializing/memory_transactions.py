"""The transactions of a copier, on logs in memory; one that another has fenced is refused."""

from multicast.errors import Fenced


class MemoryTransactions:
    """Stands for librdkafka's transactional producer; `calls` is what was asked of it, in order."""

    holders = {}  # noqa: RUF012 - all of one test's; by log and group: who was the last to fence

    def __init__(self, log, partition, group):
        self.calls = []
        self._log, self._partition, self._group = log, partition, group
        self._open = None

    def fence(self):
        before = self.holders.get((id(self._log), self._group))
        self.holders[id(self._log), self._group] = self
        if before is not None:
            before.abort()
        self.calls.append("fence")

    def committed(self, group, partitions):
        self.calls.append("committed")
        return self._log.committed(group, partitions)

    def begin(self):
        self._check()
        self.calls.append("begin")
        self._open, self._first = self._log.transaction(), []

    def copy(self, records, headers):
        self._check()
        for record, added in zip(records, headers, strict=True):
            known = {"key": record.key, "headers": added}
            self._first.append(self._open.append(self._partition, record.value, **known))

    def stored(self):
        return self._first[0]

    def commit(self, group, offsets):
        self._check()
        self.calls.append("commit")
        self._log.commit(group, offsets)
        self._open.commit()
        self._open = None

    def abort(self):
        if self._open is not None:
            self.calls.append("abort")
            self._open.abort()
            self._open = None

    def close(self):
        self.abort()

    def _check(self):
        if self.holders[id(self._log), self._group] is not self:
            raise Fenced("another copier")
