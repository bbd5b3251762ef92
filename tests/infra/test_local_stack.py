"""The one-machine stack: Kafka and MinIO answer, come back after a kill, and are gone after a stop."""

import pytest
from leyden.infra import deployment as make
from leyden.infra.settings import RoleSettings


@pytest.mark.kafka
@pytest.mark.minio
def test_a_deployment_is_created_once_and_checks_clean(deployment: RoleSettings) -> None:
    assert make.apply(deployment)
    assert make.apply(deployment) == []
    assert make.check(deployment) == []
