"""How far the gate can be trusted on this machine: how often it cries wolf and what it sleeps through."""
