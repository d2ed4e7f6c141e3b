"""What an instance that died has left behind, made step by step with the bare parts."""

from sqlalchemy import text

from dualwrite import TwoPhaseProducer
from dualwrite.owner import Owner

FOREIGN_OWNER = str(
    Owner(host="elsewhere", place="-", pid=1, started="0", token="gone", instance="")
)


class CrashedInstance:
    """One transaction on one id, taken as far as the test says, then nothing more."""

    def __init__(self, world, transactional_id, owner=FOREIGN_OWNER):
        self.world = world
        self.transactional_id = transactional_id
        self.claim = world.store.claim(transactional_id, owner=owner)
        self.producer = TwoPhaseProducer(
            {
                "bootstrap.servers": world.bootstrap,
                "transactional.id": transactional_id,
                "transaction.two.phase.commit.enable": True,
            }
        )
        self.producer.init_transactions(keep_prepared_txn=True)
        self.state = None

    def prepare(self, number):
        self.number = number
        self.producer.begin_transaction()
        self.producer.produce(self.world.topic, key=str(number), value=b"x")
        self.state = self.producer.prepare_transaction()
        return self

    def write(self):
        """Write data and state, and leave the local transaction open."""
        self.local = self.world.store.begin()
        session = self.local.resource("session")
        session.execute(text(f"INSERT INTO {self.world.orders} VALUES ({self.number}, 'x')"))
        self.world.store.remember(
            self.local.handle, self.transactional_id, self.state, self.claim.fence
        )
        return self

    def decide(self):
        self.write()
        self.local.commit()
        return self

    def die(self):
        """The connections close, the prepared transaction stays."""
        self.producer.close()
